"""Expressions of one coordinate alone: evaluated by DataFusion, once for each of its values.

``date_part('month', time)`` has as many values as the axis has positions, whatever the size
of the table. DataFusion evaluates the expression over a table of the domain, so its meaning
is SQL's by construction, and the result is a column again: codes into the distinct results,
which can be grouped by and joined on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..arrow import arrow_array, arrow_type, numpy_of_arrow
from ..coordinates import factorize
from ..domain import Domain, Explicit, domain_of, placeholder
from ..dtypes import DType, dtype_of_numpy
from ..errors import DTypeError, UnsupportedSQL
from ..functions.udf import register_functions
from ..plan import nodes as n
from ..plan.depth import session_config
from ..tensor.labelled import Tensor, TensorBuilder
from .model import Coded, Column, Coordinate, Relation, Values

if TYPE_CHECKING:
    from datafusion import SessionContext

#: Operators of SQL by their names in plans.
_INFIX = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "modulus": "%",
    "equal": "=",
    "not_equal": "<>",
    "lt": "<",
    "lte": "<=",
    "gt": ">",
    "gte": ">=",
    "and": "AND",
    "or": "OR",
    "is_distinct_from": "IS DISTINCT FROM",
    "is_not_distinct_from": "IS NOT DISTINCT FROM",
    "str_concat": "||",
    "regex_match": "~",
    "regex_imatch": "~*",
    "regex_not_match": "!~",
    "regex_not_imatch": "!~*",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "#",
    "bitwise_shift_left": "<<",
    "bitwise_shift_right": ">>",
}
_PREFIX = {"not": "NOT", "negate": "-"}
_POSTFIX = {
    "is_null": "IS NULL",
    "is_not_null": "IS NOT NULL",
    "is_true": "IS TRUE",
    "is_false": "IS FALSE",
    "is_not_true": "IS NOT TRUE",
    "is_not_false": "IS NOT FALSE",
}
_LIKE = {"like": "LIKE", "ilike": "ILIKE"}
_RENAMED = {"logb": "log"}
#: Arrow types by the names that ``arrow_cast`` knows.
_TYPES = {
    pa.bool_(): "Boolean",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.string(): "Utf8",
    pa.large_string(): "LargeUtf8",
    pa.string_view(): "Utf8View",
    pa.date32(): "Date32",
    pa.date64(): "Date64",
    pa.month_day_nano_interval(): "Interval(MonthDayNano)",
    **{getattr(pa, f"int{bits}")(): f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): f"UInt{bits}" for bits in (8, 16, 32, 64)},
}
_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_MOST_RESULTS = 1 << 22


class DomainExpressions:
    """Evaluates expressions that read one coordinate or bounded column, or none."""

    def __init__(self, builder: TensorBuilder) -> None:
        self._b = builder
        self._lock = threading.Lock()
        self._session: SessionContext | None = None

    def evaluate(self, expression: n.Expression, relation: Relation) -> Column | None:
        """The expression as a column; None if it reads several columns, or one of values.

        Raises:
            UnsupportedSQL: DataFusion fails on some value of the domain, which the query may
                not have read.
        """
        columns = {relation.columns[i] for i in references(expression)}
        if len(columns) > 1 or not _is_scalar(expression):
            return None
        source = columns.pop() if columns else None
        if isinstance(source, Values) or (source and source.domain.size > _MOST_RESULTS):
            return None
        try:
            name = expression.name if isinstance(expression, n.Call) else "expression"
            return self._column(self._run(_render(expression), name, source), source)
        except (_NoText, DTypeError):
            return None

    def _run(self, text: str, name: str, source: Coordinate | Coded | None) -> pa.Array:
        """The results for each value of the domain, then that for NULL if there may be one."""
        domain = None if source is None else source.domain
        with_null = source is not None and source.valid is not None
        batch = pa.RecordBatch.from_arrays([_domain_table(domain, with_null)], names=["c"])
        with self._lock:
            if self._session is None:
                from datafusion import SessionContext

                self._session = SessionContext(session_config().with_target_partitions(1))
                register_functions(self._session)
            session = self._session
            session.register_record_batches("domain", [[batch]])
            try:
                result = session.sql(f"SELECT {text} AS v FROM domain").to_arrow_table()
            except Exception as error:
                message = str(error).replace("DataFusion error: ", "")
                raise UnsupportedSQL(
                    name,
                    f"evaluated over all values of its coordinate, DataFusion says: {message}",
                ) from error
            finally:
                session.deregister_table("domain")
        column = result.column("v").combine_chunks()
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def _column(self, results: pa.Array, source: Coordinate | Coded | None) -> Column:
        values, valid = numpy_of_arrow(results)
        position = self._position(source, len(values))
        if pa.types.is_null(results.type):
            never = self._b.constant(False, DType.BOOL)
            return Values(self._b.constant(0.0, DType.FLOAT64), never)
        shown = None if valid is None else self._spread(valid, DType.BOOL, source, position)
        if values.dtype == np.bool_:
            return Values(self._spread(values, DType.BOOL, source, position), shown)
        present = values if valid is None else values[valid]
        if values.dtype.kind == "f" and np.isnan(present).any():
            dtype = dtype_of_numpy(values.dtype)
            assert dtype is not None
            return Values(self._spread(values, dtype, source, position), shown)
        found, distinct = factorize(present, "expression")
        codes = np.zeros(len(values), dtype=np.int64)
        codes[slice(None) if valid is None else valid] = found
        code = self._spread(codes, DType.INT64, source, position)
        return Coded(code, _domain(distinct, values.dtype), shown)

    def _position(self, source: Coordinate | Coded | None, size: int) -> Tensor:
        """Which result each row has."""
        if source is None:
            return self._b.constant(0, DType.INT64)
        if isinstance(source, Coordinate):
            return self._b.iota(source.axis)
        if source.valid is None:
            return source.code
        null = self._b.constant(size - 1, DType.INT64)
        code = self._b.cast(source.code, DType.INT64)
        return self._b.where(source.valid, code, null)

    def _spread(
        self, values: np.ndarray, dtype: DType, source: Column | None, position: Tensor
    ) -> Tensor:
        """Results as a tensor over the rows."""
        if source is None:
            return self._b.constant(values[0].item(), dtype)
        if len(values) and not dtype.is_float and (values == values[0]).all():
            return self._b.constant(values[0].item(), dtype)
        table = self._b.graph.data(values, dtype)
        if isinstance(source, Coordinate):
            return Tensor(table, (source.axis,))
        return self._b.lookup(table, position)


def _domain(distinct: np.ndarray, dtype: np.dtype) -> Domain:
    if len(distinct):
        return domain_of(distinct, "expression")
    return Explicit(placeholder(dtype))


def _domain_table(domain: Domain | None, with_null: bool) -> pa.Array:
    if domain is None:
        return pa.array([0], pa.int64())
    kind = arrow_type(domain)
    array = arrow_array(domain.values(), None, kind)
    return pa.concat_arrays([array, pa.nulls(1, kind)]) if with_null else array


def references(expression: n.Expression) -> Iterator[int]:
    """Positions of the columns that an expression reads."""
    for part in n.walk(expression):
        if isinstance(part, n.ColumnRef):
            yield part.index


def _is_scalar(expression: n.Expression) -> bool:
    """Whether every row's result depends on that row alone."""
    return not any(isinstance(p, n.Window | n.ScalarSubquery) for p in n.walk(expression))


# --- SQL text of an expression --------------------------------------------------------


class _NoText(Exception):
    """An expression that is not written as SQL here."""


def _render(expression: n.Expression) -> str:
    match expression:
        case n.ColumnRef():
            return "c"
        case n.Literal(value, kind):
            return _literal(value, kind)
        case n.Cast(operand, kind):
            return f"arrow_cast({_render(operand)}, '{_type_name(kind)}')"
        case n.Case(branches, otherwise):
            tests = " ".join(f"WHEN {_render(t)} THEN {_render(v)}" for t, v in branches)
            end = "" if otherwise is None else f" ELSE {_render(otherwise)}"
            return f"(CASE {tests}{end} END)"
        case n.InList(value, options):
            return f"({_render(value)} IN ({', '.join(map(_render, options))}))"
        case n.Call(name, arguments):
            return _call(name, list(map(_render, arguments)), arguments)
    raise _NoText


def _call(name: str, written: list[str], arguments: tuple[n.Expression, ...]) -> str:
    if name in _INFIX:
        return "(" + f" {_INFIX[name]} ".join(written) + ")"
    if name in _PREFIX:
        return f"({_PREFIX[name]} {written[0]})"
    if name in _POSTFIX:
        return f"({written[0]} {_POSTFIX[name]})"
    if name in _LIKE:
        escape = arguments[2] if len(arguments) > 2 else None
        given = isinstance(escape, n.Literal) and escape.value
        ending = f" ESCAPE {written[2]}" if given else ""
        return f"({written[0]} {_LIKE[name]} {written[1]}{ending})"
    if not name.isidentifier():
        raise _NoText
    return f"{_RENAMED.get(name, name)}({', '.join(written)})"


def _literal(value: object, kind: pa.DataType) -> str:
    if value is None:
        return "NULL" if pa.types.is_null(kind) else f"arrow_cast(NULL, '{_type_name(kind)}')"
    if isinstance(value, str):
        text = "'" + value.replace("'", "''") + "'"
        return text if kind == pa.string() else f"arrow_cast({text}, '{_type_name(kind)}')"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, tuple):
        months, days, nanoseconds = value
        return f"INTERVAL '{months} months {days} days {nanoseconds} nanoseconds'"
    number = f"'{value!r}'" if isinstance(value, float) else f"arrow_cast({value}, 'Int64')"
    if pa.types.is_date32(kind):
        number = f"arrow_cast({value}, 'Int32')"
    return f"arrow_cast({number}, '{_type_name(kind)}')"


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        return f"Timestamp({_UNITS[kind.unit]}, {zone})"
    if pa.types.is_duration(kind):
        return f"Duration({_UNITS[kind.unit]})"
    if pa.types.is_decimal(kind):
        return f"Decimal128({kind.precision}, {kind.scale})"
    if kind not in _TYPES:
        raise _NoText
    return _TYPES[kind]
