"""The one table of elementwise SQL functions: their plan names, torch lowerings and derivatives.

NULL logic (``and``, ``or``, ``not``, ``is_null``, ``coalesce``, ``nullif``, ``case``), comparisons
and casts are operators of the fold itself and are not here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from ..errors import UnsupportedSQL
from . import elementwise as ew
from .dropout import MAX_INDICES, dropout_keep

Result = Literal["float", "bool", "integer", "same"]
#: The identity in value through which no gradient flows.
STOP_GRADIENT = "ddx_stop_gradient"


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """An elementwise function of SQL.

    Attributes:
        name: the SQL name, or the operator's name (``add``).
        substrait_names: the names it bears in plans, of DataFusion's producer and of ddxdb.
        arity: smallest and largest number of arguments, None for no limit.
        torch: lowering to broadcasting tensors, in the plan's argument order; total.
        result: ``"float"`` (integers become DOUBLE), ``"bool"``, ``"integer"``, or ``"same"`` as
            the promoted arguments.
        derivative: partial derivatives as SQL templates of the arguments ``{0}``, ``{1}``, for a
            function that ddxdb has no rule for. None where ddxdb has one, where no gradient can
            flow, or where none is defined. ``"0"`` for a piecewise constant.
        fails_where: of the torch arguments, where DataFusion raises instead of giving a value; None
            for a total function. Only a total function may be moved to rows the plan hides.
    """

    name: str
    substrait_names: tuple[str, ...]
    arity: tuple[int, int | None]
    torch: Callable[..., Tensor]
    result: Result
    derivative: tuple[str, ...] | None = None
    fails_where: Callable[..., Tensor] | None = None

    def accepts(self, count: int) -> bool:
        """Whether it may be called with so many arguments."""
        least, most = self.arity
        return least <= count and (most is None or count <= most)


def _float(
    name: str, lowering: Callable[[Tensor], Tensor], derivative: str | None = None
) -> ScalarFunction:
    """A function of one argument that is always a float."""

    def on_floats(x: Tensor) -> Tensor:
        return lowering(ew.floating(x))

    partials = None if derivative is None else (derivative,)
    return ScalarFunction(name, (name,), (1, 1), on_floats, "float", partials)


_OPERATORS = (
    ScalarFunction("add", ("add",), (2, 2), torch.add, "same"),
    ScalarFunction("subtract", ("subtract",), (2, 2), torch.sub, "same"),
    ScalarFunction("multiply", ("multiply",), (2, 2), torch.mul, "same"),
    ScalarFunction("divide", ("divide",), (2, 2), ew.divide, "same", fails_where=ew.divide_fails),
    ScalarFunction(
        "modulus", ("modulus",), (2, 2), ew.modulus, "same", fails_where=ew.modulus_fails
    ),
    ScalarFunction("negate", ("negate",), (1, 1), torch.neg, "same"),
    ScalarFunction("bitwise_and", ("bitwise_and",), (2, 2), torch.bitwise_and, "integer"),
    ScalarFunction("bitwise_or", ("bitwise_or",), (2, 2), torch.bitwise_or, "integer"),
    ScalarFunction("bitwise_xor", ("bitwise_xor",), (2, 2), torch.bitwise_xor, "integer"),
    ScalarFunction("bitwise_shift_left", ("bitwise_shift_left",), (2, 2), ew.shift_left, "integer"),
    ScalarFunction(
        "bitwise_shift_right", ("bitwise_shift_right",), (2, 2), ew.shift_right, "integer"
    ),
)

_DATAFUSION = (
    ScalarFunction("abs", ("abs",), (1, 1), torch.abs, "same", fails_where=ew.absolute_fails),
    ScalarFunction("power", ("power",), (2, 2), ew.power, "float", fails_where=ew.power_fails),
    ScalarFunction("log", ("logb",), (1, 2), ew.logarithm, "float"),
    ScalarFunction(
        "atan2",
        ("atan2",),
        (2, 2),
        lambda y, x: torch.atan2(ew.floating(y), ew.floating(x)),
        "float",
        (
            "({1}) / (({0}) * ({0}) + ({1}) * ({1}))",
            "-({0}) / (({0}) * ({0}) + ({1}) * ({1}))",
        ),
    ),
    ScalarFunction("round", ("round",), (1, 2), ew.rounded, "float", ("0",)),
    ScalarFunction("trunc", ("trunc",), (1, 2), ew.truncated, "float", ("0",)),
    ScalarFunction("greatest", ("greatest",), (1, None), ew.greatest, "same"),
    ScalarFunction("least", ("least",), (1, None), ew.least, "same"),
    ScalarFunction("nanvl", ("nanvl",), (2, 2), ew.nanvl, "same"),
    ScalarFunction("isnan", ("is_nan", "isnan"), (1, 1), lambda x: ew.floating(x).isnan(), "bool"),
    ScalarFunction("iszero", ("iszero",), (1, 1), lambda x: x == 0, "bool"),
    _float("sqrt", torch.sqrt),
    _float("cbrt", ew.cbrt, "1.0 / (3.0 * cbrt({0}) * cbrt({0}))"),
    _float("exp", torch.exp),
    _float("ln", torch.log),
    _float("log10", torch.log10),
    _float("log2", torch.log2),
    _float("sin", torch.sin),
    _float("cos", torch.cos),
    _float("tan", torch.tan),
    _float("cot", ew.cotangent, "-1.0 / (sin({0}) * sin({0}))"),
    _float("asin", torch.asin),
    _float("acos", torch.acos),
    _float("atan", torch.atan),
    _float("sinh", torch.sinh),
    _float("cosh", torch.cosh),
    _float("tanh", torch.tanh),
    _float("asinh", torch.asinh, "1.0 / sqrt(({0}) * ({0}) + 1.0)"),
    _float("acosh", torch.acosh, "1.0 / sqrt(({0}) * ({0}) - 1.0)"),
    _float("atanh", torch.atanh, "1.0 / (1.0 - ({0}) * ({0}))"),
    _float("floor", torch.floor, "0"),
    _float("ceil", torch.ceil, "0"),
    _float("signum", ew.signum, "0"),
    _float("degrees", torch.rad2deg, "57.29577951308232"),
    _float("radians", torch.deg2rad, "0.017453292519943295"),
)

# Registered with DataFusion by `sql_compact.functions.udf`.
_REGISTERED = (
    # d/dx erf(x) = 2/sqrt(pi) exp(-x^2), and erfc(x) = 1 - erf(x) (Abramowitz & Stegun 7.1).
    _float("erf", torch.special.erf, "1.1283791670955126 * exp(-({0}) * ({0}))"),
    _float("erfc", torch.special.erfc, "-1.1283791670955126 * exp(-({0}) * ({0}))"),
    _float("log1p", torch.log1p, "1.0 / (1.0 + ({0}))"),
    _float("expm1", torch.expm1, "exp({0})"),
    ScalarFunction(STOP_GRADIENT, (STOP_GRADIENT,), (1, 1), ew.identity, "same"),
    *(
        ScalarFunction(
            f"dropout_keep_{count}",
            (f"dropout_keep_{count}",),
            (4 + count, 4 + count),
            dropout_keep,
            "float",
        )
        for count in range(1, MAX_INDICES + 1)
    ),
)


def _unique(
    pairs: Iterable[tuple[str, ScalarFunction]],
) -> Mapping[str, ScalarFunction]:
    table: dict[str, ScalarFunction] = {}
    for name, function in pairs:
        if name in table:
            raise ValueError(f"two functions are named {name}")
        table[name] = function
    return MappingProxyType(table)


#: Every function by its SQL name.
FUNCTIONS: Mapping[str, ScalarFunction] = _unique(
    (function.name, function) for function in (*_OPERATORS, *_DATAFUSION, *_REGISTERED)
)
#: Every function by each name it bears in a Substrait plan.
BY_SUBSTRAIT_NAME: Mapping[str, ScalarFunction] = _unique(
    (name, function) for function in FUNCTIONS.values() for name in function.substrait_names
)


def scalar_function(substrait_name: str, arguments: int) -> ScalarFunction:
    """The function a plan calls by this name (a ``:signature`` suffix is ignored).

    Raises:
        UnsupportedSQL: for a name not in the table, or a number of arguments it does not take.
    """
    name = substrait_name.partition(":")[0]
    function = BY_SUBSTRAIT_NAME.get(name)
    if function is None:
        raise UnsupportedSQL(
            f"{name}()", "no tensor lowering is known for this function", _known_functions()
        )
    if not function.accepts(arguments):
        raise UnsupportedSQL(f"{name}()", f"it does not take {arguments} arguments")
    return function


def _known_functions() -> str:
    return "Known: " + ", ".join(sorted(function.name for function in _DATAFUSION + _REGISTERED))
