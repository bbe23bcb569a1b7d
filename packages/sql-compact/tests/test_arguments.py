"""Arguments of the wrong kind are refused where they are given, by the package's own errors."""

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from sql_compact import (
    ArgumentError,
    CompactContext,
    CompactError,
    DomainError,
    DTypeError,
    InvalidSQL,
    ShapeError,
    UnknownColumn,
)

FLOATS = np.arange(6.0).reshape(2, 3)
WHOLE = np.array([[0, 1, 2], [1, 0, 1]])
DATASET = xr.Dataset({"val": (("b", "c"), WHOLE)})
ARRAY = xr.DataArray(WHOLE, dims=("b", "c"), name="val")

NAMES = {"number": 3, "list": ["a"], "empty": "", "blank": " ", "none": None, "bytes": b"x"}


def kind(value):
    return type(value).__name__


@pytest.fixture
def context():
    made = CompactContext()
    made.register("w", FLOATS, dims=("b", "c"))
    return made


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
@pytest.mark.parametrize(
    ("method", "rest"),
    [("register", (DATASET,)), ("view", ("SELECT 1 AS a",)), ("deregister", ())],
)
def test_names(context, method, rest, name):
    with pytest.raises(ArgumentError, match=r"the name of the (table|view) is"):
        getattr(context, method)(name, *rest)
    assert context.tables == ("w",)


@pytest.mark.parametrize("text", [None, 3, b"SELECT 1", ["SELECT 1"]], ids=str)
@pytest.mark.parametrize("method", ["sql", "explain", "view"])
def test_text_of_queries(context, method, text):
    arguments = ("v", text) if method == "view" else (text,)
    with pytest.raises(InvalidSQL, match="must be SQL text, a string"):
        getattr(context, method)(*arguments)


@pytest.mark.parametrize("engine", [None, 3, ["auto"], {}, b"auto", "AUTO"], ids=repr)
@pytest.mark.parametrize("method", ["sql", "explain"])
def test_engines(context, method, engine):
    with pytest.raises(InvalidSQL, match="choose one of auto, compact, rows"):
        getattr(context, method)("SELECT 1 AS a", engine=engine)


@pytest.mark.parametrize("params", [3, 2.5, "x", b"x", {1, 2}, object(), iter([1])], ids=kind)
def test_parameters(context, params):
    with pytest.raises(InvalidSQL, match="params must be a sequence or a mapping"):
        context.sql("SELECT $1 AS a", params=params)


@pytest.mark.parametrize(
    "value", [object(), b"x", np.array([1, 2]), np.timedelta64(3, "D"), 1j, 2**70], ids=kind
)
def test_values_of_parameters(context, value):
    with pytest.raises(InvalidSQL, match=r"parameter \$1"):
        context.sql("SELECT $1 AS a", params=[value])


OPTIONS = {
    "device unknown": ({"device": "tpu"}, ArgumentError, "device is 'tpu'; use 'cpu'"),
    "device not runnable": ({"device": "meta"}, ArgumentError, "device is 'meta'; use 'cpu'"),
    "device empty": ({"device": ""}, ArgumentError, "device is ''"),
    "device none": ({"device": None}, ArgumentError, "device is None"),
    "device list": ({"device": []}, ArgumentError, r"device is \[\]"),
    "device truth": ({"device": True}, ArgumentError, "device is True"),
    "device absent": ({"device": "cuda:97"}, ArgumentError, r"torch finds \d+ CUDA devices here"),
    "budget negative": ({"memory_budget": -1}, ArgumentError, "memory_budget is -1; it must be"),
    "budget zero": ({"memory_budget": 0}, ArgumentError, "memory_budget is 0; it must be"),
    "budget text": ({"memory_budget": "1GB"}, ArgumentError, "memory_budget is '1GB'"),
    "budget truth": ({"memory_budget": True}, ArgumentError, "memory_budget is True"),
    "budget nan": ({"memory_budget": float("nan")}, ArgumentError, "memory_budget is nan"),
    "budget infinite": ({"memory_budget": float("inf")}, ArgumentError, "memory_budget is inf"),
    "budget broken": ({"memory_budget": 1.5}, ArgumentError, "memory_budget is 1.5"),
    "precision": ({"precision": None}, DTypeError, "unknown precision None; choose one of"),
}


@pytest.mark.parametrize(("options", "kind", "message"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options_of_a_context(options, kind, message):
    with pytest.raises(kind, match=message):
        CompactContext(**options)


def test_a_device_without_a_driver(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ArgumentError, match="'cuda'; torch finds 0 CUDA devices here"):
        CompactContext(device="cuda")


@pytest.mark.parametrize("budget", [10**6, 1e6, np.int64(10**6)])
def test_budgets_are_whole_numbers_of_any_type(budget):
    assert CompactContext(memory_budget=budget).explain("SELECT 1 AS a").count("budget 976.6 KiB")


DOMAINS = {
    "zero": 0,
    "negative": -1,
    "float": 1.0,
    "text": "3",
    "truth": True,
    "list": [3],
    "too large": 2**63,
}


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
@pytest.mark.parametrize("form", ["array", "array by column", "DataArray", "Dataset"])
def test_domains(context, form, domain):
    data, given = {
        "array": ((WHOLE, ("b", "c")), domain),
        "array by column": ((WHOLE, ("b", "c")), {"val": domain}),
        "DataArray": ((ARRAY,), domain),
        "Dataset": ((DATASET,), {"val": domain}),
    }[form]
    with pytest.raises(DomainError, match=r"table 'x', column 'val': domain is .* from 1 to"):
        context.register("x", *data, domain=given)


def test_a_domain_may_be_any_whole_number(context):
    for data in ({"data": WHOLE, "dims": ("b", "c")}, {"data": ARRAY}):
        context.register("x", **data, domain=np.int64(3))
        counts = context.sql("SELECT val, COUNT(*) AS c FROM x GROUP BY val", engine="compact")
        assert counts.to_pandas().sort_values("val")["c"].tolist() == [2, 3, 1]


MASK = np.ones((2, 3), dtype=bool)
ARGUMENTS = {
    "data none": ({"data": None, "dims": ("b",)}, ArgumentError, "a NoneType is not an array"),
    "data list": ({"data": [1, 2], "dims": ("b",)}, ArgumentError, r"a list is.*np\.array"),
    "data text": ({"data": "text", "dims": ("b",)}, ArgumentError, "a str is not an array"),
    "data frame": (
        {"data": pd.DataFrame({"a": [1]}), "dims": ("b",)},
        ArgumentError,
        "DataFrame is not one array.*to_xarray",
    ),
    "data sparse": (
        {"data": torch.ones(2).to_sparse(), "dims": ("b",)},
        DTypeError,
        "sparse_coo; register a dense one",
    ),
    "data without values": (
        {"data": torch.ones(2, device="meta"), "dims": ("b",)},
        DTypeError,
        "on the meta device",
    ),
    "dims number": ({"data": WHOLE, "dims": 3}, ArgumentError, "dims is 3, a int"),
    "dims text": ({"data": WHOLE, "dims": "bc"}, ArgumentError, "must be a tuple of strings"),
    "dims mapping": ({"data": WHOLE, "dims": {"b": 1}}, ArgumentError, "a tuple of strings"),
    "dims of numbers": ({"data": WHOLE, "dims": (3, 4)}, ArgumentError, "a name in .* dims is 3"),
    "dims empty": ({"data": WHOLE, "dims": ("b", "")}, ArgumentError, "visible character"),
    "dims too few": ({"data": ARRAY, "dims": ("b",)}, ShapeError, r"1 dims .*for shape \(2, 3\)"),
    "dims repeat": ({"data": ARRAY, "dims": ("b", "b")}, ShapeError, "column names repeat"),
    "dims of a Dataset": ({"data": DATASET, "dims": ("p", "q")}, ArgumentError, r"rename\(\)"),
    "coords of a Dataset": (
        {"data": DATASET, "coords": {"b": [1, 2]}},
        ArgumentError,
        r"coords= is for arrays.*assign_coords\(\)",
    ),
    "coords list": (
        {"data": WHOLE, "dims": ("b", "c"), "coords": [1, 2]},
        ArgumentError,
        "coords is a list; it must be a mapping",
    ),
    "coords of no dim": (
        {"data": WHOLE, "dims": ("b", "c"), "coords": {"z": [1, 2]}},
        UnknownColumn,
        "coords are given for dim 'z'; there are: b, c",
    ),
    "coords of no dim of a DataArray": (
        {"data": ARRAY, "coords": {"z": [1, 2]}},
        UnknownColumn,
        "coords are given for dim 'z'; there are: b, c",
    ),
    "coords of a number": ({"data": ARRAY, "coords": {3: [1]}}, UnknownColumn, "for dim 3"),
    "coords nested": ({"data": ARRAY, "coords": {"b": [[1, 2]]}}, ShapeError, "table 'x'"),
    "coords scalar": ({"data": ARRAY, "coords": {"b": 5}}, ShapeError, "table 'x'"),
    "column number": ({"data": WHOLE, "dims": ("b", "c"), "column": 3}, ArgumentError, "column"),
    "column list": ({"data": ARRAY, "column": ["v"]}, ArgumentError, r"column is \['v'\]"),
    "column like a dim": (
        {"data": ARRAY.rename(None), "column": "b"},
        ShapeError,
        "several dims or variables are named b",
    ),
    "domain of no column": (
        {"data": WHOLE, "dims": ("b", "c"), "domain": {"nope": 3}},
        UnknownColumn,
        "domain is given for column 'nope'; there are: val",
    ),
    "domain of no variable": (
        {"data": DATASET, "domain": {"nope": 3}},
        UnknownColumn,
        "domain is given for variable 'nope'; there are: val",
    ),
    "domain of a Dataset": ({"data": DATASET, "domain": 3}, ArgumentError, "must be a mapping"),
    "valid of no variable": ({"data": DATASET, "valid": {"nope": MASK}}, UnknownColumn, "'nope'"),
    "valid of a Dataset": ({"data": DATASET, "valid": MASK}, ArgumentError, "must be a mapping"),
    "valid number": ({"data": WHOLE, "dims": ("b", "c"), "valid": 3}, ArgumentError, "valid= is"),
    "valid text": ({"data": ARRAY, "valid": "x"}, ArgumentError, "must be an array of booleans"),
    "valid floats": ({"data": ARRAY, "valid": MASK * 1.0}, DTypeError, "float64 values"),
    "valid shape": ({"data": ARRAY, "valid": MASK.T}, ShapeError, r"\(3, 2\).*\(2, 3\)"),
    "nan_is_null": ({"data": ARRAY, "nan_is_null": "yes"}, ArgumentError, "use True or False"),
}


@pytest.mark.parametrize(("arguments", "kind", "message"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_arguments_of_registration(context, arguments, kind, message):
    with pytest.raises(kind, match=message):
        context.register("x", **arguments)
    assert context.tables == ("w",)


@pytest.mark.parametrize(
    "mask", [[[True, True, False]] * 2, torch.tensor([[True, True, False]] * 2)]
)
def test_masks_of_other_kinds(context, mask):
    for data in ({"data": WHOLE, "dims": ("b", "c")}, {"data": ARRAY}):
        context.register("x", **data, valid=mask)
        assert context.sql("SELECT SUM(val) AS s FROM x").to_arrow()["s"].to_pylist() == [2]


@pytest.mark.parametrize("dtype", [">i4", ">f8", "<i4", ">u2"])
def test_either_byte_order(context, agree, dtype):
    context.register("x", np.array([1, 2, 300], dtype=dtype), dims=("i",))
    assert agree(context, "SELECT i, val + 1 AS v FROM x")["v"].to_pylist() == [2, 3, 301]


DATES = {
    "before": (np.array(["1500", "2000"], "datetime64[s]"), "dates outside 1678 to 2262"),
    "after": (np.array(["2000", "3000"], "datetime64[D]"), "dates outside 1678 to 2262"),
    "durations": (np.array([0, 400 * 366], "timedelta64[D]"), "durations over 292 years"),
}


@pytest.mark.parametrize(("values", "message"), DATES.values(), ids=DATES.keys())
@pytest.mark.parametrize("place", ["dim", "column"])
def test_dates_that_do_not_fit_do_not_wrap(context, place, values, message):
    def use():
        if place == "dim":
            context.register("x", np.zeros(2), dims=("t",), coords={"t": values})
        else:
            context.register("x", values, dims=("t",))
        context.sql("SELECT * FROM x")

    with pytest.raises(DomainError, match=f"table 'x', (dim 't'|column 'val').*{message}"):
        use()


def test_dates_of_python_say_what_to_use(context):
    times = list(pd.date_range("2020", periods=2, tz="Europe/Paris"))
    with pytest.raises(DTypeError, match=r"dim 't'.*Timestamp have no SQL type.*datetime64\[ns\]"):
        context.register("x", np.zeros(2), dims=("t",), coords={"t": times})


def test_names_that_are_one_in_sql(context):
    data = xr.Dataset({1: ("i", [1.0]), "1": ("i", [2.0])})
    with pytest.raises(ShapeError, match="several dims or variables are named 1"):
        context.register("x", data)


def test_an_argument_error_is_one_of_the_package():
    assert issubclass(ArgumentError, CompactError)
