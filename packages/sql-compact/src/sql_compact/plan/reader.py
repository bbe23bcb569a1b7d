"""Reader of Substrait: decodes a serialized plan into :mod:`sql_compact.plan.nodes`.

Everything the reader does not know is an :class:`UnsupportedSQL` that names the operator;
nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf.unknown_fields import UnknownFieldSet

from ..errors import UnsupportedSQL
from . import nodes as n
from .wire import ExpressionMessage, PlanMessage, RelMessage

#: Substrait's join types (enum values) that mean the same here.
_JOIN_KINDS = {
    1: n.JoinKind.INNER,
    2: n.JoinKind.FULL,
    3: n.JoinKind.LEFT,
    4: n.JoinKind.RIGHT,
    5: n.JoinKind.LEFT_SEMI,
    6: n.JoinKind.LEFT_ANTI,
    8: n.JoinKind.RIGHT_SEMI,
    9: n.JoinKind.RIGHT_ANTI,
    11: n.JoinKind.LEFT_MARK,
    12: n.JoinKind.RIGHT_MARK,
}
LiteralMessage = ExpressionMessage.Literal
#: DataFusion writes literal rows in a field that newer Substrait no longer names.
_VALUES_FIELD = 1
#: Logic of any number of operands.
_ASSOCIATIVE = ("and", "or")
_VOLATILE = ("random", "uuid")
_UNION_ALL = 6
_DISTINCT = 2  # AggregateFunction.AggregationInvocation
_SORT_DIRECTIONS = {  # enum value -> (descending, nulls first)
    1: (False, True),
    2: (False, False),
    3: (True, True),
    4: (True, False),
}
#: Type variation 1 of Substrait's integers is DataFusion's unsigned integer.
_SCALAR_TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "bool": (pa.bool_(),),
    "i8": (pa.int8(), pa.uint8()),
    "i16": (pa.int16(), pa.uint16()),
    "i32": (pa.int32(), pa.uint32()),
    "i64": (pa.int64(), pa.uint64()),
    "fp32": (pa.float32(),),
    "fp64": (pa.float64(),),
    "string": (pa.string(), pa.large_string(), pa.string_view()),
    "date": (pa.date32(), pa.date64()),
}
_LITERAL_TYPES = {"boolean": "bool"}
_TIME_UNITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}


def read_plan(message: bytes, has_not_in: bool = False) -> n.Query:
    """Decode a serialized Substrait plan with one root relation.

    Args:
        has_not_in: the query has a ``NOT IN (subquery)``, which any anti or mark join may be.

    Raises:
        UnsupportedSQL: the plan uses an operator or expression outside the dialect.
    """
    plan = PlanMessage.FromString(message)
    functions = {
        e.extension_function.function_anchor: e.extension_function.name.split(":")[0]
        for e in plan.extensions
        if e.HasField("extension_function")
    }
    if len(plan.relations) != 1 or not plan.relations[0].HasField("root"):
        raise UnsupportedSQL("plan", "a plan must have exactly one root relation")
    root = plan.relations[0].root
    return n.Query(_Reader(functions, has_not_in).relation(root.input), tuple(root.names))


class _Reader:
    def __init__(self, functions: dict[int, str], has_not_in: bool) -> None:
        self._functions = functions
        self._has_not_in = has_not_in

    # --- relations --------------------------------------------------------------------

    def relation(self, encoded: bytes) -> n.Plan:
        rel = RelMessage.FromString(encoded)
        kind = rel.WhichOneof("rel_type")
        reader: Callable | None = getattr(self, f"_{kind}", None)
        if reader is None:
            raise UnsupportedSQL(str(kind).upper(), "this relational operator is not read")
        message = getattr(rel, kind)
        out = reader(message)
        if message.HasField("common") and message.common.HasField("emit"):
            out = n.Emit(out, tuple(message.common.emit.output_mapping))
        return out

    def _read(self, message: Any) -> n.Plan:
        names = list(message.base_schema.names)
        if message.filter:
            raise UnsupportedSQL("scan filter", "a filter inside a table scan is not read")
        if message.HasField("virtual_table"):
            types = tuple(map(_type, message.base_schema.struct.types))
            return n.Values(self._literal_rows(message.virtual_table), types)
        if not message.HasField("named_table"):
            raise UnsupportedSQL("scan", "only named tables and literal rows can be read")
        if message.HasField("projection"):
            names = [names[item.field] for item in message.projection.select.struct_items]
        table = list(message.named_table.names)
        if table[-1].endswith("()"):
            raise UnsupportedSQL(table[-1], "a function that makes a table is not read")
        return n.Read(".".join(table), tuple(names))

    def _literal_rows(self, message: Any) -> tuple[tuple[n.Expression, ...], ...]:
        rows = [tuple(map(self._expression, row.fields)) for row in message.expressions]
        for field in UnknownFieldSet(message):
            if field.field_number != _VALUES_FIELD:
                raise UnsupportedSQL("VALUES", f"field {field.field_number} of it is not read")
            row = LiteralMessage.Struct.FromString(field.data)
            rows.append(tuple(map(self._literal, row.fields)))
        return tuple(rows)

    def _project(self, message: Any) -> n.Plan:
        return n.Project(
            self.relation(message.input), tuple(map(self._expression, message.expressions))
        )

    def _filter(self, message: Any) -> n.Plan:
        return n.Filter(self.relation(message.input), self._expression(message.condition))

    def _join(self, message: Any) -> n.Plan:
        kind = _JOIN_KINDS.get(message.type)
        if kind is None:
            raise UnsupportedSQL("JOIN", f"Substrait join type {message.type} is not read")
        condition = self._optional(message.expression)
        if message.post_join_filter:
            extra = self._expression(message.post_join_filter)
            condition = extra if condition is None else n.Call("and", (condition, extra))
        left, right = self.relation(message.left), self.relation(message.right)
        may_be_not_in = self._has_not_in and kind.value.endswith(("ANTI JOIN", "MARK JOIN"))
        return n.Join(kind, left, right, condition, may_be_not_in)

    def _cross(self, message: Any) -> n.Plan:
        left, right = self.relation(message.left), self.relation(message.right)
        return n.Join(n.JoinKind.INNER, left, right, None)

    def _aggregate(self, message: Any) -> n.Plan:
        if len(message.groupings) > 1:
            raise UnsupportedSQL("GROUPING SETS", "only one list of group keys is supported")
        keys: tuple[n.Expression, ...] = ()
        if message.groupings:
            grouping = message.groupings[0]
            expressions = [message.grouping_expressions[i] for i in grouping.expression_references]
            keys = tuple(map(self._expression, expressions))
        measures = tuple(self._measure(m) for m in message.measures)
        return n.Aggregate(self.relation(message.input), keys, measures)

    def _measure(self, message: Any) -> n.Measure:
        function = message.measure
        name = self._functions[function.function_reference]
        if function.sorts:
            raise UnsupportedSQL(f"{name.upper()}(... ORDER BY)", "ordered aggregates are not read")
        condition = self._optional(message.filter)
        return n.Measure(
            name,
            self._arguments(function.arguments),
            function.invocation == _DISTINCT,
            condition,
        )

    def _set(self, message: Any) -> n.Plan:
        if message.op != _UNION_ALL:
            raise UnsupportedSQL("set operation", f"Substrait set operation {message.op}")
        return n.UnionAll(tuple(map(self.relation, message.inputs)))

    def _sort(self, message: Any) -> n.Plan:
        keys = []
        for sort in message.sorts:
            if sort.direction not in _SORT_DIRECTIONS:
                raise UnsupportedSQL("ORDER BY", f"sort direction {sort.direction} is not read")
            descending, nulls_first = _SORT_DIRECTIONS[sort.direction]
            keys.append(n.SortKey(self._expression(sort.expr), descending, nulls_first))
        return n.Sort(self.relation(message.input), tuple(keys))

    def _fetch(self, message: Any) -> n.Plan:
        return n.Fetch(
            self.relation(message.input),
            self._row_count(message.offset_expr, "OFFSET") or 0,
            self._row_count(message.count_expr, "LIMIT"),
        )

    def _row_count(self, encoded: bytes, operator: str) -> int | None:
        expression = self._optional(encoded)
        if expression is None:
            return None
        if not isinstance(expression, n.Literal):
            raise UnsupportedSQL(operator, "the number of rows must be a literal")
        return None if expression.value is None else int(expression.value)

    # --- expressions ------------------------------------------------------------------

    def _arguments(self, arguments: Any) -> tuple[n.Expression, ...]:
        return tuple(self._expression(argument.value) for argument in arguments)

    def _optional(self, encoded: bytes) -> n.Expression | None:
        return self._expression(encoded) if encoded else None

    def _expression(self, encoded: bytes) -> n.Expression:
        # ``a + b + c`` nests to the left, so its calls are read in a loop: Python, too, goes
        # only so deep.
        calls = []
        message = ExpressionMessage.FromString(encoded)
        while message.WhichOneof("rex_type") == "scalar_function":
            calls.append(message.scalar_function)
            if not calls[-1].arguments:
                return self._call(calls[-1], ())
            message = ExpressionMessage.FromString(calls[-1].arguments[0].value)
        expression = self._not_a_call(message)
        for call in reversed(calls):
            others = tuple(self._expression(a.value) for a in call.arguments[1:])
            expression = self._call(call, (expression, *others))
        return expression

    def _not_a_call(self, message: Any) -> n.Expression:
        kind = message.WhichOneof("rex_type")
        if kind == "selection":
            return n.ColumnRef(message.selection.direct_reference.struct_field.field)
        if kind == "literal":
            return self._literal(message.literal)
        if kind == "cast":
            return n.Cast(self._expression(message.cast.input), _type(message.cast.type))
        if kind == "if_then":
            return self._case(message.if_then)
        if kind == "singular_or_list":
            options = tuple(map(self._expression, message.singular_or_list.options))
            return n.InList(self._expression(message.singular_or_list.value), options)
        if kind == "window_function":
            return self._window(message.window_function)
        if kind == "subquery":
            return self._subquery(message.subquery)
        raise UnsupportedSQL(str(kind), "this kind of expression is not read")

    def _call(self, message: Any, arguments: tuple[n.Expression, ...]) -> n.Call:
        name = self._functions[message.function_reference]
        if name in _VOLATILE:
            raise UnsupportedSQL(
                f"{name}()",
                "it gives another value on every row",
                "Use dropout_keep() for randomness that is a function of the row",
            )
        first = arguments[0] if arguments else None
        if name in _ASSOCIATIVE and isinstance(first, n.Call) and first.name == name:
            arguments = (*first.arguments, *arguments[1:])
        return n.Call(name, arguments)

    def _subquery(self, message: Any) -> n.ScalarSubquery:
        kind = message.WhichOneof("subquery_type")
        if kind != "scalar":
            name = {"in_predicate": "IN (subquery)", "set_predicate": "EXISTS"}.get(kind, str(kind))
            raise UnsupportedSQL(name, "it is only folded as a condition of WHERE")
        return n.ScalarSubquery(self.relation(message.scalar.input))

    def _case(self, message: Any) -> n.Case:
        clauses = [(getattr(clause, "if"), clause.then) for clause in message.ifs]
        operand: n.Expression | None = None
        if clauses and not clauses[0][1]:
            # ``CASE operand WHEN ...`` has the operand as a first clause without a value.
            operand = self._expression(clauses.pop(0)[0])
        branches = []
        for test, value in clauses:
            condition = self._expression(test)
            if operand is not None:
                condition = n.Call("equal", (operand, condition))
            branches.append((condition, self._expression(value)))
        return n.Case(tuple(branches), self._optional(getattr(message, "else")))

    def _window(self, message: Any) -> n.Window:
        name = self._functions[message.function_reference]
        # A bound left out is unbounded; without ORDER BY the rest is the whole partition.
        bounds = (message.lower_bound, message.upper_bound)
        whole = all(b.WhichOneof("kind") in (None, "unbounded") for b in bounds)
        if message.sorts or not whole:
            raise UnsupportedSQL(
                f"{name.upper()}(...) OVER",
                "only windows over the whole partition are supported",
                "Leave out ORDER BY and frame bounds inside OVER",
            )
        return n.Window(
            name,
            self._arguments(message.arguments),
            tuple(map(self._expression, message.partitions)),
        )

    def _literal(self, message: Any) -> n.Literal:
        kind = message.WhichOneof("literal_type")
        if kind == "null" and message.null.HasField("user_defined"):
            return n.Literal(None, pa.null())  # a NULL that nothing gives a type
        if kind == "null":
            return n.Literal(None, _type(message.null))
        if kind in ("precision_timestamp", "precision_timestamp_tz"):
            stamp = getattr(message, kind)
            unit = _TIME_UNITS[stamp.precision]
            zone = "UTC" if kind.endswith("tz") else None
            return n.Literal(stamp.value, pa.timestamp(unit, tz=zone))
        if kind == "var_char":
            return n.Literal(message.var_char.value, pa.string())
        if kind == "interval_compound":
            return n.Literal(_interval(message.interval_compound), pa.month_day_nano_interval())
        name = _LITERAL_TYPES.get(kind, kind)
        if name not in _SCALAR_TYPES:
            raise UnsupportedSQL(f"literal of type {kind}", "this type of literal is not read")
        sql_type = _variation(name, message.type_variation_reference)
        value = getattr(message, kind)
        if pa.types.is_unsigned_integer(sql_type):
            value %= 1 << sql_type.bit_width  # the message holds its bits as a signed number
        return n.Literal(value, sql_type)


def _interval(message: Any) -> tuple[int, int, int]:
    """Months, days and nanoseconds."""
    months, rest = message.interval_year_to_month, message.interval_day_to_second
    fraction = rest.subseconds * 10 ** (9 - rest.precision)
    return months.years * 12 + months.months, rest.days, rest.seconds * 10**9 + fraction


def _variation(name: str, variation: int) -> pa.DataType:
    types = _SCALAR_TYPES[name]
    if variation >= len(types):
        raise UnsupportedSQL(f"type {name}", f"type variation {variation} is not read")
    return types[variation]


def _type(message: Any) -> pa.DataType:
    kind = message.WhichOneof("kind")
    if kind in _SCALAR_TYPES:
        return _variation(kind, getattr(message, kind).type_variation_reference)
    if kind in ("precision_timestamp", "precision_timestamp_tz"):
        unit = _TIME_UNITS[getattr(message, kind).precision]
        return pa.timestamp(unit, tz="UTC" if kind.endswith("tz") else None)
    if kind == "decimal":
        return pa.decimal128(message.decimal.precision, message.decimal.scale)
    if kind == "varchar":
        return pa.string()
    if kind == "interval_compound":
        return pa.month_day_nano_interval()
    raise UnsupportedSQL(f"type {kind}", "this type is not read")
