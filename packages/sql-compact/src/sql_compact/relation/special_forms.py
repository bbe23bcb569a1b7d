"""Functions that SQL defines on NULL, and those with meaning beyond their values.

Each takes the evaluation, the call with unevaluated arguments, and the relation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..dtypes import DType
from ..errors import UnsupportedSQL
from ..plan import nodes as n
from ..tensor.graph import scalar_value
from .model import Column, Relation, Values, is_null, nullable

if TYPE_CHECKING:
    from .expressions import Expressions


def _and(e: Expressions, call: n.Call, relation: Relation) -> Values:
    return _logic(e, call, relation, "and")


def _or(e: Expressions, call: n.Call, relation: Relation) -> Values:
    return _logic(e, call, relation, "or")


def _logic(e: Expressions, call: n.Call, relation: Relation, name: str) -> Values:
    """Kleene logic: an unknown operand decides nothing."""
    operands = [e.value_of(e.evaluate(a, relation)) for a in call.arguments]
    result = operands[0]
    for other in operands[1:]:
        result = _kleene(e, name, result, other)
    return result


def _kleene(e: Expressions, name: str, a: Values, b: Values) -> Values:
    m = e.builder.map
    if a.valid is None and b.valid is None:
        return Values(m(name, a.value, b.value))
    known = []
    decided = []
    for operand in (a, b):
        valid = operand.valid or e.builder.constant(True, DType.BOOL)
        if name == "and":
            known.append(m("or", operand.value, m("not", valid)))
            decided.append(m("and", valid, m("not", operand.value)))
        else:
            known.append(m("and", operand.value, valid))
            decided.append(m("and", valid, operand.value))
    both = e.builder.conjunction((a.valid, b.valid))
    assert both is not None
    valid = m("or", both, m("or", *decided))
    return Values(m(name, *known), valid)


def _not(e: Expressions, call: n.Call, relation: Relation) -> Values:
    operand = e.value_of(e.evaluate(call.arguments[0], relation))
    return Values(e.builder.map("not", operand.value), operand.valid)


def _is_null(e: Expressions, call: n.Call, relation: Relation) -> Values:
    valid = e.evaluate(call.arguments[0], relation).valid
    if valid is None:
        return Values(e.builder.constant(False, DType.BOOL))
    return Values(e.builder.map("not", valid))


def _is_not_null(e: Expressions, call: n.Call, relation: Relation) -> Values:
    valid = e.evaluate(call.arguments[0], relation).valid
    return Values(valid or e.builder.constant(True, DType.BOOL))


def _same(e: Expressions, call: n.Call, relation: Relation) -> Values:
    left, right = (e.evaluate(a, relation) for a in call.arguments)
    return Values(e.same(left, right))


def _distinct(e: Expressions, call: n.Call, relation: Relation) -> Values:
    return Values(e.builder.map("not", _same(e, call, relation).value))


def _truth(e: Expressions, call: n.Call, relation: Relation) -> Values:
    """IS [NOT] TRUE / FALSE: never NULL."""
    operand = e.value_of(e.evaluate(call.arguments[0], relation))
    value = operand.value
    if call.name.endswith("false"):
        value = e.builder.map("not", value)
    result = e.builder.conjunction((value, operand.valid))
    assert result is not None
    return Values(e.builder.map("not", result) if "not" in call.name else result)


def _coalesce(e: Expressions, call: n.Call, relation: Relation) -> Column:
    operands = [e.evaluate(a, relation) for a in call.arguments]
    if operands[0].valid is None:
        return operands[0]
    result = operands[-1]
    for operand in reversed(operands[:-1]):
        mask = operand.valid or e.builder.constant(True, DType.BOOL)
        if scalar_value(mask.node) is not False:
            result = e.choose_column(mask, nullable(e.builder, operand, None), result)
    return result


def _extreme(e: Expressions, call: n.Call, relation: Relation) -> Column:
    """GREATEST and LEAST leave NULLs out."""
    operands = [e.value_of(e.evaluate(a, relation)) for a in call.arguments]
    known = [o for o in operands if not is_null(o)] or operands[:1]
    result = known[0]
    for other in known[1:]:
        value = e.mapped(call.name, [result.value, other.value])
        if result.valid is None and other.valid is None:
            result = Values(value)
            continue
        if other.valid is not None:
            value = e.builder.where(other.valid, value, e.builder.cast(result.value, value.dtype))
        if result.valid is not None:
            value = e.builder.where(result.valid, value, e.builder.cast(other.value, value.dtype))
        valid = None
        if result.valid is not None and other.valid is not None:
            valid = e.builder.map("or", result.valid, other.valid)
        result = Values(value, valid)
    return result


def _nullif(e: Expressions, call: n.Call, relation: Relation) -> Column:
    left, right = (e.evaluate(a, relation) for a in call.arguments)
    equal = e.compare("equal", left, right)
    hit = e.builder.conjunction((equal.value, equal.valid))
    assert hit is not None
    return nullable(e.builder, left, e.builder.conjunction((left.valid, e.builder.map("not", hit))))


def _stop_gradient(e: Expressions, call: n.Call, relation: Relation) -> Column:
    return e.evaluate(call.arguments[0], relation)


def _power(e: Expressions, call: n.Call, relation: Relation) -> Column:
    """A square is a product: the same value, cheaper, and known to the contraction rules."""
    base, exponent = (e.value_of(e.evaluate(a, relation)) for a in call.arguments)
    valid = e.builder.conjunction((base.valid, exponent.valid))
    if base.value.dtype.is_float and scalar_value(exponent.value.node) == 2:
        return Values(e.builder.map("multiply", base.value, base.value), valid)
    if base.value.dtype.is_integer and exponent.value.dtype.is_integer:
        raise UnsupportedSQL("POWER", "an integer power can fail", "Cast to DOUBLE")
    return Values(e.builder.map("power", base.value, exponent.value), valid)


def _dropout(e: Expressions, call: n.Call, relation: Relation) -> Column:
    """A mask of a dropout probability that is literally 0 is all ones."""
    operands = [e.value_of(e.evaluate(a, relation)) for a in call.arguments]
    valid = e.builder.conjunction(o.valid for o in operands)
    if scalar_value(operands[0].value.node) == 0:
        return Values(e.builder.constant(1.0, DType.FLOAT64), valid)
    return Values(e.builder.map(call.name, *(o.value for o in operands)), valid)


#: By name; any other function of a NULL is NULL.
SPECIAL_FORMS: dict[str, Callable[[Expressions, n.Call, Relation], Column]] = {
    "and": _and,
    "or": _or,
    "not": _not,
    "is_null": _is_null,
    "is_not_null": _is_not_null,
    "is_unknown": _is_null,
    "is_not_unknown": _is_not_null,
    "is_not_distinct_from": _same,
    "is_distinct_from": _distinct,
    "is_true": _truth,
    "is_false": _truth,
    "is_not_true": _truth,
    "is_not_false": _truth,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "greatest": _extreme,
    "least": _extreme,
    "ddx_stop_gradient": _stop_gradient,
    "power": _power,
    **{f"dropout_keep_{count}": _dropout for count in range(1, 5)},
}
