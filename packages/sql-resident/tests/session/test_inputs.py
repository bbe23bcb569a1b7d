"""Every wrong input is a typed error that says what is wrong and where, before anything runs."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from sql_compact import (
    CompactError,
    DomainError,
    DTypeError,
    InvalidSQL,
    ShapeError,
    UnknownColumn,
    UnknownTable,
)
from sql_resident import SGD, AdamW, BatchInput, SessionError, TrainingSession, fit


def with_change(**changes):
    """A change of a batch: arrays replaced by name, or left out where None."""

    def change(batch):
        changed = {**batch, **{n: f(batch.get(n)) for n, f in changes.items()}}
        return {n: a for n, a in changed.items() if a is not None}

    return change


def put(value, *at):
    def change(array):
        array = array.copy()
        array[at] = value
        return array

    return change


BATCHES = {
    "token outside its domain": (
        with_change(tokens=put(7, 2, 3)),
        DomainError,
        r"table 'tokens', column 'token': value 7 at \(b=2, t=3\) is outside its domain 0..6",
    ),
    "negative token": (
        with_change(tokens=put(-1, 0, 4)),
        DomainError,
        r"table 'tokens', column 'token': value -1 at \(b=0, t=4\) is outside its domain 0..6",
    ),
    "wrong shape": (
        with_change(tokens=lambda a: a[:, :4]),
        ShapeError,
        r"table 'tokens', column 'token': expected shape \(b: 6, t: 5\), got \(6, 4\)",
    ),
    "floats for tokens": (
        with_change(tokens=lambda a: a.astype(float)),
        DTypeError,
        "table 'tokens', column 'token': expected int64 values, got float64",
    ),
    "integers for floats": (
        with_change(y=lambda a: np.ones(6, int)),
        DTypeError,
        "table 'y', column 'val': expected float64 values, got int64",
    ),
    "truth values for tokens": (
        with_change(tokens=lambda a: a > 3),
        DTypeError,
        "expected int64 values, got bool",
    ),
    "text": (
        with_change(tokens=lambda a: a.astype(str)),
        DTypeError,
        "values of type <U.* are not numbers",
    ),
    "NaN": (
        with_change(y=put(np.nan, 4)),
        DomainError,
        r"table 'y', column 'val': value nan at \(b=4\) is not finite",
    ),
    "missing": (
        with_change(y=lambda a: None),
        SessionError,
        r"batch: missing \['y'\], unknown nothing; the session takes \['tokens', 'y'\]",
    ),
    "unknown": (
        with_change(z=lambda a: np.zeros(3)),
        SessionError,
        r"batch: missing nothing, unknown \['z'\]; the session takes \['tokens', 'y'\]",
    ),
}


@pytest.fixture(scope="module")
def untouched():
    """Keeps one session for all batches: a refused one must not change it."""
    return {}


@pytest.mark.parametrize("call", ["step", "gradients", "evaluate"])
@pytest.mark.parametrize("case", BATCHES)
def test_wrong_batches(case, call, untouched, embedding, same_bits):
    change, kind, message = BATCHES[case]
    if not untouched:
        untouched["session"] = embedding.session(optimizer=AdamW())
        untouched["session"].step(embedding.batch_of(0))
    session = untouched["session"]
    before = session.state()
    with pytest.raises(kind, match=message):
        getattr(session, call)(change(embedding.batch_of(1)))
    assert same_bits(session.state(), before)
    assert session.step_count == 1


def weight(values, *dims, **coords):
    return xr.DataArray(np.asarray(values), dims=dims, coords=coords)


def linear_weight(values, *dims):
    return {"parameters": {"w": weight(values, *dims)}}


LOSS = """WITH p AS (SELECT x.b, SUM(x.val * w.val) AS val FROM x JOIN w ON x.i = w.i GROUP BY x.b)
SELECT AVG(p.val - y.val) AS loss FROM p JOIN y ON p.b = y.b"""

SESSIONS = {
    "NaN in a weight": (
        linear_weight([0.0, np.nan, 1.0], "i"),
        SessionError,
        r"parameter 'w': value nan at \(i=1\) is not finite",
    ),
    "infinite weight, named by its coordinate": (
        {"parameters": {"w": weight([0.0, 0.0, np.inf], "i", i=[0, 1, 2])}},
        SessionError,
        r"parameter 'w': value inf at \(i=2\) is not finite",
    ),
    "integer weights": (
        linear_weight([1, 2, 3], "i"),
        DTypeError,
        "parameter 'w': weights must be floats, not int64",
    ),
    "a bare array": (
        {"parameters": {"w": np.zeros(3)}},
        SessionError,
        "parameter 'w' is a ndarray; give a DataArray",
    ),
    "a weight without dims": (
        {"parameters": {"w": xr.DataArray(0.0)}},
        SessionError,
        "parameter 'w' has no dims",
    ),
    "no parameters": ({"parameters": {}}, SessionError, "at least one parameter table"),
    "a parameter called like an input": (
        {"parameters": {"x": weight(np.zeros(3), "i")}},
        SessionError,
        "two tables are called 'x'; rename one",
    ),
    "a parameter called like a slot": (
        {
            "parameters": {"w": weight(np.zeros(3), "i"), "w_m": weight(np.zeros(3), "i")},
            "optimizer": AdamW(),
        },
        SessionError,
        "two tables are called 'w_m'; rename one",
    ),
    "a parameter called like the step's table": (
        {"parameters": {"clip": weight(np.zeros(3), "i")}, "loss": LOSS.replace("w", "clip")},
        SessionError,
        "table 'clip' has the name of one of the step's own; rename it",
    ),
    "a common table called like the step's": (
        {"loss": LOSS.replace("p AS", "w_grad AS").replace(" p ", " w_grad p ")},
        SessionError,
        "the common table w_grad has the name of a table that the step needs; rename it",
    ),
    "hyper called like the session's": (
        {"hyper": {"step": 1.0}},
        SessionError,
        "hyper: 'step' is set by the session; choose another name",
    ),
    "hyper that is no number": ({"hyper": {"p": "0.1"}}, SessionError, "p is '0.1'; it must be"),
    "unknown table": (
        {"loss": LOSS.replace("JOIN y", "JOIN z AS y")},
        UnknownTable,
        "z",
    ),
    "unknown column": (
        {"loss": LOSS.replace("y.val", "y.value")},
        UnknownColumn,
        "value",
    ),
    "text that is no SQL": ({"loss": "SELEC 1"}, InvalidSQL, "SELEC"),
    "more than one row": (
        {"loss": LOSS.replace("AVG(p.val - y.val) AS loss", "p.val - y.val AS loss")},
        SessionError,
        "loss: the query must return one row and one column",
    ),
    "more than one column": (
        {"loss": LOSS.replace("AS loss", "AS loss, AVG(y.val) AS other")},
        SessionError,
        "loss: the query must return one row and one column",
    ),
    "a parameter that the loss does not read": (
        {"parameters": {"w": weight(np.zeros(3), "i"), "unread": weight(np.zeros(2), "k")}},
        SessionError,
        "loss: the query does not read parameter 'unread'",
    ),
    "clip norm": ({"clip_norm": 0.0}, SessionError, "clip_norm is 0.0; it must be above 0"),
    "policy": ({"on_non_finite": "ignore"}, SessionError, "use 'raise' or 'skip'"),
    "average": ({"ema_decay": 1.0}, SessionError, "ema_decay is 1.0; it must be at least 0"),
    "seed": ({"seed": 2**63}, SessionError, "seed is 9223372036854775808"),
    "seed that is no integer": ({"seed": 1.5}, SessionError, "seed is 1.5"),
    "learning rate": ({"learning_rate": float("nan")}, SessionError, "lr is nan"),
    "precision": ({"precision": "float8"}, DTypeError, "unknown precision 'float8'"),
    "repeated dims of an input": (
        {"batch": {"x": BatchInput(("b", "b"), (8, 3)), "y": BatchInput(("b",), (8,))}},
        ShapeError,
        "table 'x': column names repeat",
    ),
    "an input of size 0": (
        {"batch": {"x": BatchInput(("b", "i"), (0, 3)), "y": BatchInput(("b",), (0,))}},
        SessionError,
        "batch: table 'x': sizes and domain must be whole numbers of at least 1, not 0",
    ),
}


@pytest.mark.parametrize("case", SESSIONS)
def test_wrong_sessions(case, linear):
    options, kind, message = SESSIONS[case]
    with pytest.raises(kind, match=message) as caught:
        linear.session(**{"loss": LOSS, **options})
    assert isinstance(caught.value, CompactError)


def test_a_bad_weight_is_named_by_its_coordinates(linear):
    parameters = {"w": weight([0.0, np.nan, 0.0], "i", i=[10, 20, 30])}
    with pytest.raises(SessionError, match=r"parameter 'w': value nan at \(i=20\) is not finite"):
        linear.session(parameters=parameters)


MIXED = """SELECT AVG((x.val - "W".val) * (x.val - "W".val)) AS loss
FROM x JOIN "W" ON x."Feature" = "W"."Feature" """


def mixed(loss: str) -> TrainingSession:
    return TrainingSession(
        loss=loss,
        parameters={"W": weight(np.zeros(3), "Feature")},
        batch={"x": BatchInput(("Batch", "Feature"), (4, 3))},
        optimizer=AdamW(),
        ema_decay=0.5,
        clip_norm=1.0,
        learning_rate=0.1,
        precision="float64",
    )


def test_mixed_case_names_work_where_they_are_quoted():
    session = mixed(MIXED)
    batch = {"x": np.ones((4, 3))}
    first = session.step([batch, batch]).loss
    assert session.step(batch).loss < first
    assert set(session.state()) == {"W", "W.m", "W.v", "W.ema"}
    assert session.sql('SELECT "Feature", val FROM "W_m"').dims == ("Feature",)


def test_mixed_case_names_without_quotes_are_unknown():
    with pytest.raises(UnknownColumn, match="feature"):
        mixed(MIXED.replace('x."Feature"', "x.Feature"))


@pytest.mark.parametrize(
    ("weights", "kind", "message"),
    [
        ({}, SessionError, r"weights: missing \['w'\]"),
        ({"w": np.zeros(3), "v": np.zeros(3)}, SessionError, r"unknown \['v'\]"),
        ({"w": np.zeros(4)}, ShapeError, r"table 'w', column 'val': expected shape \(i: 3\)"),
        ({"w": np.zeros(3, int)}, DTypeError, "expected float64 values, got int64"),
        ({"w": np.array([0, np.inf, 0])}, SessionError, r"value inf at \(i=1\) is not finite"),
    ],
)
def test_wrong_weights_change_nothing(weights, kind, message, linear, same_bits):
    session = linear.session(optimizer=SGD())
    session.step(linear.batch_of(0))
    before = session.state()
    with pytest.raises(kind, match=message):
        session.set_weights(weights)
    assert same_bits(session.state(), before)
    assert session.step_count == 1


WRONG_KINDS = {
    "an optimizer's name": (
        lambda p: p.session(optimizer="adam"),
        "optimizer is 'adam'; it must be an optimizer such as",
    ),
    "an optimizer's class": (
        lambda p: p.session(optimizer=AdamW),
        "optimizer is AdamW; it must be",
    ),
    "an array for a description": (
        lambda p: p.session(batch={**p.batch, "x": np.zeros((2, 3))}),
        "batch: table 'x' is a ndarray; describe it by a BatchInput",
    ),
    "a list of inputs": (lambda p: p.session(batch=list(p.batch)), "batch is a list; it must map"),
    "a word for a switch": (lambda p: p.session(compile="yes"), "compile is 'yes'; use True"),
    "an unknown device": (lambda p: p.session(device="tpu"), "device is 'tpu'; use 'cpu'"),
    "another kind of device": (lambda p: p.session(device="meta"), "device is 'meta'; use 'cpu'"),
    "no such device": (lambda p: p.session(device="cuda:99"), "torch finds .* CUDA devices"),
    "no batch": (lambda p: p.session().step(None), "batch is a NoneType; it must map"),
    "an array for a batch": (lambda p: p.session().step(np.zeros(3)), "batch is a ndarray"),
    "arrays for micro-batches": (
        lambda p: p.session().step([np.zeros(3), np.zeros(3)]),
        "batch is a ndarray; it must map table names",
    ),
    "nothing to stage": (lambda p: p.session().stage(None), "batch is a NoneType"),
    "nothing to evaluate": (lambda p: p.session().evaluate([1]), "batch is a list"),
    "words for metrics": (
        lambda p: p.session().save("x.npz", "loss"),
        "metrics is 'loss'; it must",
    ),
    "a list for a function": (
        lambda p: fit(p.session(), [p.batch_of(0)], steps=1),
        "fit: batches is a list; it must be a function",
    ),
}


@pytest.mark.parametrize("wrong", WRONG_KINDS)
def test_a_value_of_the_wrong_kind_is_refused(wrong, linear, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, message = WRONG_KINDS[wrong]
    with pytest.raises(SessionError, match=message):
        make(linear)
    assert not list(tmp_path.iterdir())
