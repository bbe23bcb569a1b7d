"""Every lowering against DataFusion's own answers, and every plan name against its own plans."""

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from datafusion import SessionContext
from datafusion.substrait import Serde
from sql_compact.errors import UnsupportedSQL
from sql_compact.functions.registry import BY_SUBSTRAIT_NAME, FUNCTIONS, scalar_function
from sql_compact.functions.udf import USER_FUNCTIONS, register_functions
from substrait.plan_pb2 import Plan

# SQL of each function on columns x, y (DOUBLE) or i, j (BIGINT), and the name in its plan.
EMITTED = {
    "x + y": "add",
    "x - y": "subtract",
    "x * y": "multiply",
    "x / y": "divide",
    "x % y": "modulus",
    "-x": "negate",
    "i & j": "bitwise_and",
    "i | j": "bitwise_or",
    "i ^ j": "bitwise_xor",
    "i << j": "bitwise_shift_left",
    "i >> j": "bitwise_shift_right",
    "abs(x)": "abs",
    "power(x, y)": "power",
    "pow(x, y)": "power",
    "log(x)": "logb",
    "log(y, x)": "logb",
    "atan2(x, y)": "atan2",
    "round(x)": "round",
    "round(x, 2)": "round",
    "trunc(x)": "trunc",
    "trunc(x, 2)": "trunc",
    "greatest(x, y, 0.5)": "greatest",
    "least(x, y)": "least",
    "nanvl(x, y)": "nanvl",
    "isnan(x)": "is_nan",
    "iszero(x)": "iszero",
    "dropout_keep_1(x, i, i, i, i)": "dropout_keep_1",
    "dropout_keep_2(x, i, i, i, i, i)": "dropout_keep_2",
    "dropout_keep_3(x, i, i, i, i, i, i)": "dropout_keep_3",
    "dropout_keep_4(x, i, i, i, i, i, i, i)": "dropout_keep_4",
    "sqrt(x)": "sqrt",
    "cbrt(x)": "cbrt",
    "exp(x)": "exp",
    "ln(x)": "ln",
    "log10(x)": "log10",
    "log2(x)": "log2",
    "sin(x)": "sin",
    "cos(x)": "cos",
    "tan(x)": "tan",
    "cot(x)": "cot",
    "asin(x)": "asin",
    "acos(x)": "acos",
    "atan(x)": "atan",
    "sinh(x)": "sinh",
    "cosh(x)": "cosh",
    "tanh(x)": "tanh",
    "asinh(x)": "asinh",
    "acosh(x)": "acosh",
    "atanh(x)": "atanh",
    "floor(x)": "floor",
    "ceil(x)": "ceil",
    "signum(x)": "signum",
    "degrees(x)": "degrees",
    "radians(x)": "radians",
    "erf(x)": "erf",
    "erfc(x)": "erfc",
    "log1p(x)": "log1p",
    "expm1(x)": "expm1",
    "ddx_stop_gradient(x)": "ddx_stop_gradient",
}


def _context(**columns):
    context = SessionContext()
    register_functions(context)
    context.register_record_batches("t", [[pa.RecordBatch.from_pydict(columns)]])
    return context


def _answer(expression, **columns):
    table = _context(**columns).sql(f"SELECT {expression} AS r FROM t").to_arrow_table()
    return table["r"].to_numpy()


@pytest.fixture(scope="module")
def planner():
    return _context(x=[1.0], y=[1.0], i=[1], j=[1])


@pytest.mark.parametrize(("expression", "name"), EMITTED.items())
def test_the_name_in_the_plan_is_in_the_table(planner, expression, name):
    plan = Plan()
    plan.ParseFromString(Serde.serialize_bytes(f"SELECT {expression} AS r FROM t", planner))
    assert [item.extension_function.name for item in plan.extensions] == [name]
    calls = plan.relations[0].root.input.project.expressions[0].scalar_function
    assert scalar_function(name, len(calls.arguments)) is BY_SUBSTRAIT_NAME[name]


def test_every_function_of_the_table_is_seen_in_a_plan():
    assert {BY_SUBSTRAIT_NAME[name].name for name in EMITTED.values()} == set(FUNCTIONS)


def test_unknown_names_and_wrong_arities_are_named():
    with pytest.raises(UnsupportedSQL, match=r"md5\(\).*Known: abs"):
        scalar_function("md5", 1)
    with pytest.raises(UnsupportedSQL, match="does not take 3 arguments"):
        scalar_function("sqrt", 3)
    assert scalar_function("add:fp64_fp64", 2).name == "add"
    assert scalar_function("isnan", 1) is scalar_function("is_nan", 1)
    assert scalar_function("greatest", 9).accepts(9)


def test_every_registered_function_is_in_the_table():
    for function in USER_FUNCTIONS:
        assert scalar_function(function.name, len(function.arguments)).name == function.name


INF, NAN = math.inf, math.nan
SPECIAL = [0.0, -0.0, NAN, INF, -INF, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 2.0, 10.0, 100.0]
SPECIAL += [0.49999999999999994, -0.3, 4503599627370495.5, 4503599627370497.0, 2.0**53, 1e300]
SPECIAL += [-1e300, 1.7e308, 1e-310, 5e-324, -5e-324, math.pi, 2.675, 1.005, 709.0, -745.0, 0.1]
_RNG = np.random.default_rng(0)
UNARY = np.concatenate(
    [
        SPECIAL,
        _RNG.normal(size=1000),
        50 * _RNG.normal(size=500),
        np.sign(_RNG.normal(size=500)) * 10 ** _RNG.uniform(-320, 308, 500),
    ]
)
_PAIRS = np.array(list(itertools.product(SPECIAL, SPECIAL)))
_RANDOM = _RNG.normal(size=(1000, 2)) * 10 ** _RNG.uniform(-5, 5, (1000, 2))
BINARY = np.concatenate([_PAIRS, _RANDOM])


def _ordered(values):
    bits = values.view(np.int64)
    return np.where(bits < 0, -(bits & np.int64(2**63 - 1)), bits)


def assert_within_ulp(got, expected, ulp):
    """NaN equals NaN; a zero must have the right sign; otherwise at most so many ulp apart."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    known = ~np.isnan(expected)
    got, expected = got[known], expected[known]
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))
    apart = np.abs(_ordered(got) - _ordered(expected))
    # Two numbers of opposite sign wrap around in the difference.
    same_sign = np.signbit(got) == np.signbit(expected)
    assert np.all(same_sign | (apart == 0)) and apart.max(initial=0) <= ulp


# Exact, or one rounding: bit for bit. The other unary functions: 2 ulp. IEEE 754 rounds sqrt
# correctly and DataFusion does, but torch's vector library on the CPU is 1 ulp off at times.
EXACT = {"floor", "ceil", "abs", "signum", "round", "trunc", "radians", "degrees"}
EXACT |= {"ddx_stop_gradient"}
UNARY_NAMES = sorted(
    {"abs", "log", "round", "trunc"}
    | {
        name
        for name, function in FUNCTIONS.items()
        if function.result == "float" and function.arity == (1, 1)
    }
    | {"ddx_stop_gradient"}
    # DataFusion's own atanh loses digits below zero: see the test of its odd symmetry.
    - {"atanh"}
)


@pytest.mark.parametrize("name", sorted({*UNARY_NAMES} - {"atanh"}))
def test_unary_functions_on_doubles(name):
    expected = _answer(f"{name}(x)", x=UNARY)
    got = FUNCTIONS[name].torch(torch.from_numpy(UNARY)).numpy()
    assert_within_ulp(got, expected, 0 if name in EXACT else 2)


def test_negation_on_doubles():
    got = FUNCTIONS["negate"].torch(torch.from_numpy(UNARY)).numpy()
    assert_within_ulp(got, _answer("-x", x=UNARY), 0)


def test_atanh_is_odd_where_datafusion_is_not():
    x = torch.from_numpy(UNARY)
    got = FUNCTIONS["atanh"].torch(x).numpy()
    expected = np.copysign(_answer("atanh(abs(x))", x=UNARY), UNARY)
    np.testing.assert_allclose(got, expected, rtol=4e-16, atol=0)
    np.testing.assert_allclose(got, _answer("atanh(x)", x=UNARY), rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("name", "expression", "ulp"),
    [
        ("add", "x + y", 0),
        ("subtract", "x - y", 0),
        ("multiply", "x * y", 0),
        ("divide", "x / y", 0),
        ("modulus", "x % y", 0),
        ("atan2", "atan2(x, y)", 2),
        ("log", "log(y, x)", 2),
        ("greatest", "greatest(x, y)", 0),
        ("least", "least(x, y)", 0),
        ("nanvl", "nanvl(x, y)", 0),
        ("power", "power(x, y)", 2),
    ],
)
def test_binary_functions_on_doubles(name, expression, ulp):
    function = FUNCTIONS[name]
    x, y = torch.from_numpy(BINARY.copy()).T
    if function.fails_where is not None:
        fails = function.fails_where(x, y)
        x, y = x[~fails], y[~fails]
    x, y = x.contiguous(), y.contiguous()
    expected = _answer(expression, x=x.numpy(), y=y.numpy())
    assert_within_ulp(function.torch(x, y).numpy(), expected, ulp)


@pytest.mark.parametrize("name", ["round", "trunc"])
@pytest.mark.parametrize("digits", [-400, -2, -1, 0, 1, 2, 5, 20, 308, 400])
def test_rounding_to_digits(name, digits):
    # Powers of ten are exact up to 10^22; DataFusion's repeated squaring strays beyond.
    ulp = 50 if digits == 308 else 0
    expected = _answer(f"{name}(x, {digits})", x=UNARY)
    got = FUNCTIONS[name].torch(torch.from_numpy(UNARY), torch.tensor(digits, dtype=torch.int32))
    assert_within_ulp(got.numpy(), expected, ulp)


def test_greatest_and_least_take_many_arguments_and_both_nan_signs():
    negative_nan = np.copysign(NAN, -1.0)
    columns = np.array(
        list(itertools.product([0.0, -0.0, NAN, negative_nan, INF, -INF, 1.0], repeat=3))
    )
    arguments = dict(zip("xyz", np.ascontiguousarray(columns.T), strict=True))
    for name in ("greatest", "least"):
        got = FUNCTIONS[name].torch(*map(torch.from_numpy, arguments.values())).numpy()
        expected = _answer(f"{name}(x, y, z)", **arguments)
        np.testing.assert_array_equal(got.view(np.int64), expected.view(np.int64))


@pytest.mark.parametrize("name", ["isnan", "iszero"])
def test_predicates(name):
    got = FUNCTIONS[name].torch(torch.from_numpy(UNARY)).numpy()
    np.testing.assert_array_equal(got, _answer(f"{name}(x)", x=UNARY))


INTEGERS = np.array([0, 1, -1, 2, -2, 3, 7, -7, 63, 64, 2**62, 2**63 - 1, -(2**63)])
INTEGER_PAIRS = np.array(list(itertools.product(INTEGERS, INTEGERS)))
INTEGER_FUNCTIONS = {
    "add": "x + y",
    "subtract": "x - y",
    "multiply": "x * y",
    "divide": "x / y",
    "modulus": "x % y",
    "bitwise_and": "x & y",
    "bitwise_or": "x | y",
    "bitwise_xor": "x ^ y",
    "bitwise_shift_left": "x << y",
    "bitwise_shift_right": "x >> y",
    "greatest": "greatest(x, y)",
    "least": "least(x, y)",
}


@pytest.mark.parametrize(("name", "expression"), INTEGER_FUNCTIONS.items())
def test_binary_functions_on_integers_wrap_around(name, expression):
    function = FUNCTIONS[name]
    x, y = (torch.from_numpy(column.copy()) for column in INTEGER_PAIRS.T)
    got = function.torch(x, y)
    assert got.dtype == torch.int64
    fails = torch.zeros_like(x, dtype=torch.bool)
    if function.fails_where is not None:
        fails = function.fails_where(x, y)
    expected = _answer(expression, x=x[~fails].numpy(), y=y[~fails].numpy())
    np.testing.assert_array_equal(got[~fails].numpy(), expected)


@pytest.mark.parametrize(
    ("name", "expression", "rows"),
    [
        ("divide", "x / y", [(1, 0), (0, 0), (-(2**63), -1)]),
        ("modulus", "x % y", [(1, 0), (0, 0)]),
        ("power", "power(x, y)", [(0.0, -1.0), (-0.0, -2.5), (0.0, -INF)]),
        ("abs", "abs(x)", [(-(2**63),)]),
    ],
)
def test_rows_marked_as_failing_are_those_where_datafusion_raises(name, expression, rows):
    for row in rows:
        columns = {name: np.array([value]) for name, value in zip("xy", row, strict=False)}
        assert FUNCTIONS[name].fails_where(*map(torch.from_numpy, columns.values())).all()
        with pytest.raises(Exception, match=r"[Dd]ivide by zero|overflow|Overflow|zero raised"):
            _answer(expression, **columns)


@pytest.mark.parametrize("name", ["negate", "abs", "signum", "sqrt", "floor", "round", "exp"])
def test_unary_functions_on_integers(name):
    x = INTEGERS[:-1] if name == "abs" else INTEGERS
    expression = "-x" if name == "negate" else f"{name}(x)"
    got, expected = FUNCTIONS[name].torch(torch.from_numpy(x)).numpy(), _answer(expression, x=x)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=4e-16)


SINGLE = [name for name in UNARY_NAMES if name not in ("log",)]


@pytest.mark.parametrize("name", SINGLE)
def test_unary_functions_keep_single_precision(name):
    x = torch.from_numpy(UNARY).to(torch.float32)
    got = FUNCTIONS[name].torch(x)
    assert got.dtype == torch.float32
    exact = FUNCTIONS[name].torch(x.double())
    tiny = torch.finfo(torch.float32).tiny
    close = torch.isclose(
        got.double(), exact.float().double(), rtol=1e-6, atol=tiny, equal_nan=True
    )
    assert close.all(), x[~close]


def test_modulus_keeps_single_precision():
    x, y = (column.contiguous() for column in torch.from_numpy(BINARY).float().T)
    got = FUNCTIONS["modulus"].torch(x, y).numpy()
    expected = _answer("x % y", x=x.numpy(), y=y.numpy())
    np.testing.assert_array_equal(
        got.view(np.int32)[~np.isnan(got)], expected.view(np.int32)[~np.isnan(got)]
    )
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


@pytest.mark.parametrize("name", ["erf", "erfc", "log1p", "expm1", "ddx_stop_gradient"])
def test_registered_functions_keep_null(name):
    got = _context(x=[0.5, None]).sql(f"SELECT {name}(x) AS r FROM t").to_pydict()["r"]
    expected = {"ddx_stop_gradient": lambda x: x}.get(name) or getattr(math, name)
    assert got == [pytest.approx(expected(0.5), rel=4e-16), None]
