"""Scalar expressions over a relation, with SQL's three-valued logic.

Evaluation gives a column: its value, and where it is NULL. A comparison, function or
operator of a NULL is NULL, except for the few functions in :mod:`.special_forms` that SQL
defines on NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from ..domain import Domain, Range, common_domain, domain_of, positions
from ..dtypes import DType, dtype_of_arrow
from ..errors import UnsupportedSQL
from ..functions.registry import ScalarFunction, scalar_function
from ..plan import nodes as n
from ..tensor.graph import scalar_value
from ..tensor.labelled import Axis, Tensor, TensorBuilder
from .domain_expressions import DomainExpressions, references
from .equalities import EQUALITIES, literal_value
from .model import Coded, Column, Coordinate, Relation, Values, is_null
from .special_forms import SPECIAL_FORMS

#: Unsigned types that torch has little arithmetic for.
_WIDE_UNSIGNED = (DType.UINT16, DType.UINT32, DType.UINT64)
#: Arithmetic whose lowest bits depend on its operands' lowest bits alone.
_WRAPPING = ("add", "subtract", "multiply", "negate")
_COMPARISONS = ("equal", "not_equal", "lt", "lte", "gt", "gte")


class Expressions:
    """Evaluates scalar expressions."""

    def __init__(self, builder: TensorBuilder) -> None:
        self.builder = builder
        self._domains = DomainExpressions(builder)

    # --- columns ----------------------------------------------------------------------

    def value_of(self, column: Column) -> Values:
        """The column as numbers.

        Raises:
            UnsupportedSQL: its values are text or dates.
        """
        if isinstance(column, Values):
            return column
        if isinstance(column, Coordinate):
            return Values(
                self._domain_values(column.domain, self.builder.iota(column.axis), column)
            )
        return Values(self._domain_values(column.domain, column.code, column), column.valid)

    def _domain_values(self, domain: Domain, code: Tensor, column: Coordinate | Coded) -> Tensor:
        if isinstance(domain, Range):
            code = self.builder.cast(code, domain.dtype)
            if domain.start == 0:
                return code
            return self.builder.map("add", code, self.builder.constant(domain.start, domain.dtype))
        if domain.dtype is None:
            raise UnsupportedSQL(
                "expression",
                f"it computes with {_described(domain)} of several columns, or of an aggregate",
                "Compare them with other coordinates or literals of the same type instead",
            )
        return self._by_position(column, domain.array, domain.dtype)

    def _by_position(self, column: Coordinate | Coded, values: np.ndarray, dtype: DType) -> Tensor:
        """``values`` over the column's domain, as numbers over its rows."""
        if isinstance(column, Coordinate):
            return Tensor(self.builder.graph.data(values, dtype), (column.axis,))
        position = scalar_value(column.code.node)
        if position is not None:
            return self.builder.constant(values[int(position)].item(), dtype)
        return self.builder.lookup(self.builder.graph.data(values, dtype), column.code)

    def literal(self, literal: n.Literal) -> Column:
        dtype = dtype_of_arrow(literal.type)
        if literal.value is None:
            value = self.builder.constant(0, dtype or DType.FLOAT64)
            return Values(value, self.builder.constant(False, DType.BOOL))
        if dtype is None:
            if isinstance(literal.value, tuple):
                raise UnsupportedSQL("INTERVAL", "arithmetic with intervals, of values")
            domain = domain_of(np.asarray([literal_value(literal)]), "literal")
            return Coded(self.builder.constant(0, DType.INT64), domain)
        return Values(self.builder.constant(literal.value, dtype))

    # --- evaluation -------------------------------------------------------------------

    def evaluate(self, expression: n.Expression, relation: Relation) -> Column:
        """The expression as a column over (some of) the relation's axes.

        Raises:
            UnsupportedSQL: it uses a function or type that does not fold.
        """
        # ``a + b + c`` nests to the left: a loop from the innermost call outwards.
        calls: list[n.Call] = []
        inner = expression
        while isinstance(inner, n.Call) and inner.name not in SPECIAL_FORMS and inner.arguments:
            calls.append(inner)
            inner = inner.arguments[0]
        column = self._or_over_domain(inner, relation, lambda: self._evaluate(inner, relation))
        for call in reversed(calls):
            first = column

            def applied(call: n.Call = call, first: Column | UnsupportedSQL = first) -> Column:
                if isinstance(first, UnsupportedSQL):
                    raise first
                others = [self.evaluate(a, relation) for a in call.arguments[1:]]
                return self._applied(call, [first, *others])

            column = self._or_over_domain(call, relation, applied)
        if isinstance(column, UnsupportedSQL):
            raise column
        return column

    def _or_over_domain(
        self, expression: n.Expression, relation: Relation, attempt: Callable[[], Column]
    ) -> Column | UnsupportedSQL:
        """What an attempt gives, else the expression over its only coordinate, else why not."""
        try:
            return attempt()
        except UnsupportedSQL as reason:
            column = self._domains.evaluate(expression, relation)
            return reason if column is None else column

    def over_domain(self, expression: n.Expression, relation: Relation) -> Column | None:
        """An expression of one coordinate or bounded column, as a column with a domain.

        None if it reads anything else or its results have no domain.
        """
        column = self._domains.evaluate(expression, relation)
        return None if isinstance(column, Values) else column

    def _evaluate(self, expression: n.Expression, relation: Relation) -> Column:
        match expression:
            case n.ColumnRef(index):
                return relation.columns[index]
            case n.Literal():
                return self.literal(expression)
            case n.Cast(operand, kind):
                return self._cast(self.evaluate(operand, relation), kind)
            case n.Case(branches, otherwise):
                return self._case(branches, otherwise, relation)
            case n.InList(value, options):
                tests = [n.Call("equal", (value, option)) for option in options]
                return self._call(n.Call("or", tuple(tests)), relation)
            case n.Call():
                return self._call(expression, relation)
        raise UnsupportedSQL("expression", f"{type(expression).__name__} is not evaluated")

    def condition(self, expression: n.Expression, relation: Relation) -> Tensor | None:
        """Where the condition is true (not false, not NULL); None: everywhere."""
        result = self.value_of(self.evaluate(expression, relation))
        mask = self.builder.conjunction((result.value, result.valid))
        if mask is not None and scalar_value(mask.node) is True:
            return None
        return mask

    def _call(self, call: n.Call, relation: Relation) -> Column:
        special = SPECIAL_FORMS.get(call.name)
        if special is not None:
            return special(self, call, relation)
        return self._applied(call, [self.evaluate(a, relation) for a in call.arguments])

    def _applied(self, call: n.Call, arguments: list[Column]) -> Column:
        """A function of columns that it is defined on as values."""
        if call.name in _COMPARISONS:
            return self.compare(call.name, *arguments)
        if call.name == "subtract":
            return self._difference(call, *map(self.value_of, arguments))
        function = scalar_function(call.name, len(arguments))
        operands = [self.value_of(a) for a in arguments]
        self._refuse_failing(function, operands)
        valid = self.builder.conjunction(o.valid for o in operands)
        return Values(self.mapped(call.name, [o.value for o in operands]), valid)

    def mapped(self, name: str, values: list[Tensor]) -> Tensor:
        """A function of values; torch computes unsigned numbers as signed ones, which wrap."""
        types = [v.dtype for v in values]
        if not any(t in _WIDE_UNSIGNED for t in types) or any(t.is_float for t in types):
            return self.builder.map(name, *values)
        result = self.builder.map(name, *(self.builder.cast(v, DType.INT64) for v in values))
        if not result.dtype.is_integer:
            if DType.UINT64 not in types:
                return result
            return self.builder.map(name, *(self.builder.cast(v, DType.FLOAT64) for v in values))
        if DType.UINT64 in types and name not in _WRAPPING:
            raise UnsupportedSQL(f"{name}()", "on unsigned numbers of 64 bits")
        return self.builder.cast(result, DType(np.result_type(*(t.numpy for t in types)).name))

    def _refuse_failing(self, function: ScalarFunction, operands: list[Values]) -> None:
        """A function that can fail must not run on rows that the query never reads.

        Integer division by a literal other than zero cannot fail; nor can float arithmetic.
        """
        if function.fails_where is None or any(o.value.dtype.is_float for o in operands):
            return
        divisor = scalar_value(operands[-1].value.node)
        if function.name in ("divide", "modulus") and divisor not in (None, 0, -1):
            return
        raise UnsupportedSQL(
            f"{function.name}()",
            "on integers it can fail, and would be evaluated on rows that the query never reads",
            "Cast its arguments to DOUBLE",
        )

    def compare(self, name: str, left: Column, right: Column) -> Values:
        """A comparison; NULL where either side is."""
        valid = self.builder.conjunction((left.valid, right.valid))
        if not isinstance(left, Values) and not isinstance(right, Values):
            if name in ("equal", "not_equal") and left.domain == right.domain:
                return Values(
                    self.builder.map(name, self.code_of(left), self.code_of(right)), valid
                )
            if left.domain.dtype is None and right.domain.dtype is None:
                return Values(self.builder.map(name, *self._ranks(left, right)), valid)
        a, b = self.value_of(left).value, self.value_of(right).value
        if a.dtype.is_float or b.dtype.is_float:
            wide = DType.FLOAT64 if DType.FLOAT64 in (a.dtype, b.dtype) else DType.FLOAT32
            a, b = (self.builder.map("total_order", self.builder.cast(t, wide)) for t in (a, b))
        elif any(t.dtype in _WIDE_UNSIGNED for t in (a, b)):
            # Torch does not order unsigned numbers: signed ones in the same order.
            low = np.iinfo(np.int64).min if DType.UINT64 in (a.dtype, b.dtype) else 0
            shift = self.builder.constant(low, DType.INT64)
            a, b = (
                self.builder.map("add", self.builder.cast(t, DType.INT64), shift) for t in (a, b)
            )
        return Values(self.builder.map(name, a, b), valid)

    def _ranks(self, *columns: Coordinate | Coded) -> Iterator[Tensor]:
        """Text or dates as positions among all values of the columns' domains, in order."""
        keys = [column.domain.values().tolist() for column in columns]
        ordered = sorted({value for values in keys for value in values})
        rank = {value: i for i, value in enumerate(ordered)}
        for column, values in zip(columns, keys, strict=True):
            ranks = np.asarray([rank[value] for value in values], dtype=np.int64)
            yield self._by_position(column, ranks, DType.INT64)

    def code_of(self, column: Coordinate | Coded) -> Tensor:
        """Positions of the column's values in its domain."""
        return self.builder.iota(column.axis) if isinstance(column, Coordinate) else column.code

    def same(self, left: Column, right: Column) -> Tensor:
        """IS NOT DISTINCT FROM: true where both are NULL, or equal and neither NULL."""
        equal = self.compare("equal", left, right)
        if equal.valid is None:
            return equal.value
        both = self.builder.map("and", equal.value, equal.valid)
        if left.valid is None or right.valid is None:
            return both
        neither = self.builder.map(
            "and", self.builder.map("not", left.valid), self.builder.map("not", right.valid)
        )
        return self.builder.map("or", both, neither)

    def _cast(self, column: Column, kind: pa.DataType) -> Column:
        dtype = dtype_of_arrow(kind)
        operand = self.value_of(column)
        source = operand.value.dtype
        if dtype is None:
            raise UnsupportedSQL("CAST", f"casting {source.value} to {kind}")
        if source is dtype:
            return column
        widening = dtype.is_float or source.is_bool
        if not widening and source.is_integer and dtype.is_integer:
            known = scalar_value(operand.value.node)
            widening = bool(np.can_cast(source.numpy, dtype.numpy, casting="safe"))
            if known is not None:
                limits = np.iinfo(dtype.numpy)
                widening = widening or limits.min <= int(known) <= limits.max
        if not widening:
            raise UnsupportedSQL(
                "CAST", f"casting {source.value} to {kind} can fail on rows the query never reads"
            )
        return Values(self.builder.cast(operand.value, dtype), operand.valid)

    def _case(
        self,
        branches: tuple[tuple[n.Expression, n.Expression], ...],
        otherwise: n.Expression | None,
        relation: Relation,
    ) -> Column:
        taken: list[tuple[Tensor, Column]] = []
        final: Column | None = None
        for test, then in branches:
            mask = self.condition(test, relation)
            if mask is None:
                final = self.evaluate(then, relation)
                break
            if scalar_value(mask.node) is not False:
                taken.append((mask, self.evaluate(then, relation)))
        if final is None:
            null = n.Literal(None, pa.float64())
            final = self.evaluate(otherwise or null, relation)
        if not taken:
            return final
        result = final
        for mask, then in reversed(taken):
            result = self.choose_column(mask, then, result)
        return result

    def choose_column(self, mask: Tensor, then: Column, otherwise: Column) -> Column:
        """``then`` where the mask holds, else ``otherwise``; of text and dates by position."""
        coded = [c for c in (then, otherwise) if not _is_number(c)]
        if not coded:
            return self.choose(mask, self.value_of(then), self.value_of(otherwise))
        domain = common_domain([c.domain for c in coded])
        sides = []
        for column in (then, otherwise):
            if isinstance(column, Values):
                if not is_null(column):
                    raise UnsupportedSQL("CASE", "numbers and text or dates in one column")
                sides.append(Values(self.builder.constant(0, DType.INT64), column.valid))
                continue
            found = positions(column.domain.values(), domain)
            sides.append(Values(self._by_position(column, found, DType.INT64), column.valid))
        chosen = self.choose(mask, *sides)
        return Coded(chosen.value, domain, chosen.valid)

    def choose(self, mask: Tensor, then: Values, otherwise: Values) -> Values:
        """``then`` where the mask holds, else ``otherwise``."""
        a, b = then.value, otherwise.value
        if a.dtype is not b.dtype:
            # An untyped NULL takes the other branch's type.
            if is_null(then):
                a = self.builder.cast(a, b.dtype)
            elif is_null(otherwise):
                b = self.builder.cast(b, a.dtype)
            else:
                wide = max((a.dtype, b.dtype), key=lambda d: (d.is_float, d.numpy.itemsize))
                a, b = self.builder.cast(a, wide), self.builder.cast(b, wide)
        if is_null(otherwise):
            return Values(a, self.builder.conjunction((mask, then.valid)))
        if is_null(then):
            return Values(
                b, self.builder.conjunction((self.builder.map("not", mask), otherwise.valid))
            )
        valid = None
        if then.valid is not None and otherwise.valid is not None:
            valid = self.builder.map("where", mask, then.valid, otherwise.valid)
        elif otherwise.valid is not None:
            valid = self.builder.map("or", mask, otherwise.valid)
        elif then.valid is not None:
            valid = self.builder.map("or", self.builder.map("not", mask), then.valid)
        return Values(self.builder.map("where", mask, a, b), self.builder.known_mask(valid))

    def _difference(self, call: n.Call, left: Values, right: Values) -> Column:
        """``x - stop_gradient(x)`` is the zero of the stop-gradient identity."""
        stopped = call.arguments[1]
        if isinstance(stopped, n.Call) and stopped.name == "ddx_stop_gradient" and left == right:
            return Values(self.builder.tangent_zero(left.value.dtype), left.valid)
        valid = self.builder.conjunction((left.valid, right.valid))
        return Values(self.mapped("subtract", [left.value, right.value]), valid)


def _described(domain: Domain) -> str:
    return "dates" if domain.values().dtype.kind in "mM" else "text"


def _is_number(column: Column) -> bool:
    return isinstance(column, Values) or column.domain.dtype is not None


def only_axis(expression: n.Expression, relation: Relation) -> Axis | None:
    """The axis that an expression reads and nothing else; None for an equality with it.

    An equality with a literal fixes the dim, which is better than shortening it.
    """
    is_equality = isinstance(expression, n.Call) and expression.name in EQUALITIES
    if is_equality and all(isinstance(a, n.ColumnRef | n.Literal) for a in expression.arguments):
        return None
    columns = {relation.columns[i] for i in references(expression)}
    only = columns.pop() if len(columns) == 1 else None
    return only.axis if isinstance(only, Coordinate) else None
