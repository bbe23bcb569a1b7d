"""Every wrong input is a typed error that says what is wrong and where, before anything runs."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
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
from sql_resident import (
    SGD,
    AdamW,
    BatchInput,
    Lion,
    SessionError,
    TrainingSession,
    WarmupCosine,
    fit,
)


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
    "a list for an array": (
        with_change(tokens=lambda a: a.tolist()),
        SessionError,
        "table 'tokens', column 'token': it is a list; give a numpy array",
    ),
    "unsigned token outside its domain": (
        with_change(tokens=lambda a: put(9, 2, 3)(a.astype(np.uint16))),
        DomainError,
        r"value 9 at \(b=2, t=3\) is outside its domain 0..6",
    ),
    "unsigned token of torch outside its domain": (
        with_change(tokens=lambda a: torch.from_numpy(put(9, 2, 3)(a)).to(torch.uint16)),
        DomainError,
        r"value 9 at \(b=2, t=3\) is outside its domain 0..6",
    ),
    "masked values": (
        with_change(y=lambda a: np.ma.masked_greater(a, 0.0)),
        SessionError,
        "table 'y', column 'val': some of its values are masked; fill them first",
    ),
    "a sparse tensor": (
        with_change(y=lambda a: torch.from_numpy(a).to_sparse()),
        SessionError,
        "table 'y', column 'val': give a dense tensor",
    ),
    "a tensor without values": (
        with_change(y=lambda a: torch.empty(6, device="meta")),
        SessionError,
        "table 'y', column 'val': give a dense tensor that has values",
    ),
    "a DataArray of other dims": (
        with_change(y=lambda a: xr.DataArray(a, dims="t")),
        ShapeError,
        r"the DataArray has the dims \('t',\), the table \('b',\); transpose or rename them",
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
    "a weight beyond the state's element type": (
        {"parameters": {"w": weight([0.0, 1e300, 0.0], "i")}, "precision": "float32"},
        SessionError,
        r"parameter 'w': value 1e\+300 at \(i=1\) is too large for torch.float32",
    ),
    "a parameter called like an array of the state": (
        {"parameters": {"w.m": weight(np.zeros(3), "i")}},
        SessionError,
        "parameter 'w.m': a name has no dot",
    ),
    "a loss that is no query": ({"loss": "DROP TABLE w"}, InvalidSQL, "loss: it must be a query"),
    "a huge number": ({"clip_norm": 10**400}, SessionError, "clip_norm is 1000.*above 0"),
    "a huge scalar": ({"hyper": {"p": 10**400}}, SessionError, "p is 1000.*must be finite"),
    "a huge rate": ({"learning_rate": 10**400}, SessionError, "lr is 1000.*must be finite"),
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
    "no loss": (lambda p: p.session(loss=None), "loss is a NoneType; it must be SQL text"),
    "bytes for a loss": (lambda p: p.session(loss=b"SELECT 1"), "loss is a bytes; it must be SQL"),
    "a list of parameters": (
        lambda p: p.session(parameters=list(p.parameters().values())),
        "parameters is a list; it must map table names",
    ),
    "a number for a parameter's name": (
        lambda p: p.session(parameters={1: p.parameters()["w"]}),
        "parameters: 1 is no name",
    ),
    "a number for an input's name": (
        lambda p: p.session(batch={**p.batch, 1: BatchInput(("b",), (8,))}),
        "batch: 1 is no name",
    ),
    "a string for dims": (
        lambda p: p.session(batch={**p.batch, "y": BatchInput("b", (8,))}),
        "batch: table 'y': dims is 'b'; use",
    ),
    "a number for a dim": (
        lambda p: p.session(batch={**p.batch, "y": BatchInput((0,), (8,))}),
        "batch: table 'y': columns: 0 is no name",
    ),
    "no name of a column": (
        lambda p: p.session(batch={**p.batch, "y": BatchInput(("b",), (8,), None)}),
        "batch: table 'y': columns: None is no name",
    ),
    "a number for a shape": (
        lambda p: p.session(batch={**p.batch, "y": BatchInput(("b",), 8)}),
        "batch: table 'y': shape is 8; use",
    ),
    "one set of shapes": (
        lambda p: p.session(batch_shapes={"x": (4, 3)}),
        "batch_shapes is a dict; it must be a list of mappings",
    ),
    "sets of shapes without names": (
        lambda p: p.session(batch_shapes=[(4, 3)]),
        r"batch_shapes: \(4, 3\) is no mapping",
    ),
    "a number for a declared shape": (
        lambda p: p.session(batch_shapes=[{"y": 4}]),
        "batch: table 'y': shape is 4; use",
    ),
    "words for a clip norm": (lambda p: p.session(clip_norm="1"), "clip_norm is '1'; it must be"),
    "a truth value for a clip norm": (lambda p: p.session(clip_norm=True), "clip_norm is True"),
    "an array for a clip norm": (lambda p: p.session(clip_norm=np.ones(2)), "clip_norm is array"),
    "words for an average": (lambda p: p.session(ema_decay="x"), "ema_decay is 'x'; it must be"),
    "an array for an average": (lambda p: p.session(ema_decay=np.ones(2)), "ema_decay is array"),
    "an array for a policy": (
        lambda p: p.session(on_non_finite=np.array(["skip", "raise"])),
        "on_non_finite is array",
    ),
    "a list of scalars": (lambda p: p.session(hyper=["p"]), "hyper is a list; it must map names"),
    "a number for a scalar's name": (lambda p: p.session(hyper={1: 1.0}), "hyper: 1 is no name"),
    "a complex scalar": (lambda p: p.session(hyper={"p": np.complex64(1)}), "p is .*a number"),
    "a schedule's class": (
        lambda p: p.session(learning_rate=WarmupCosine),
        "learning_rate is <class .*WarmupCosine.*it must be a number, or an object",
    ),
    "a bare function for a schedule": (
        lambda p: p.session(learning_rate=lambda step: 0.1),
        "learning_rate is <function.*to_json",
    ),
    "no weights": (lambda p: p.session().set_weights(None), "weights is a NoneType; it must map"),
    "a list of numbers for weights": (
        lambda p: p.session().set_weights({"w": [0.0, 0.0, 0.0]}),
        "parameter 'w': it is a list; give a numpy array",
    ),
    "nothing to call": (
        lambda p: p.session().step(p.batch_of(0), meanwhile=3),
        "meanwhile is 3; it must be a function",
    ),
    "words for weights of micro-batches": (
        lambda p: p.session().step([p.batch_of(0)] * 2, weights=["a", "b"]),
        "weights: that of micro-batch 0 is 'a'; it must be a positive number",
    ),
    "a number for weights of micro-batches": (
        lambda p: p.session().step([p.batch_of(0)] * 2, weights=3),
        "weights is a int; give a list of 2 numbers",
    ),
    "words for a metric": (
        lambda p: p.session().save("x.npz", {"loss": "small"}),
        "metric 'loss' is 'small'; it must be a number",
    ),
    "no session to fit": (lambda p: fit(None, p.batch_of, steps=1), "fit: session is a NoneType"),
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdamW(betas=0.9), "AdamW: betas is 0.9; it must be two numbers"),
        (lambda: AdamW(betas=(0.9,)), r"AdamW: betas is \(0.9,\); it must be two numbers"),
        (lambda: AdamW(betas=("a", "b")), r"AdamW: betas\[0\] is 'a'; it must be a number"),
        (lambda: AdamW(eps="x"), "AdamW: eps is 'x'; it must be a number"),
        (lambda: AdamW(eps=10**400), "AdamW: eps is 1000"),
        (lambda: AdamW(weight_decay=None), "AdamW: weight_decay is None; it must be a number"),
        (lambda: AdamW(weight_decay={"w": "x"}), r"weight_decay\['w'\] is 'x'; it must be"),
        (lambda: Lion(betas="ab"), "Lion: betas is 'ab'; it must be two numbers"),
        (lambda: SGD(momentum=None), "SGD: momentum is None; it must be a number"),
        (lambda: SGD(nesterov="yes"), "SGD: nesterov is 'yes'; use True or False"),
    ],
)
def test_numbers_of_optimizers_that_are_none(make, message):
    with pytest.raises(SessionError, match=message):
        make()


class Own:
    """An optimizer that keeps everything as it is, but for what a test changes."""

    def __init__(self, slots=("s",), change=lambda statements: statements):
        self.slots = slots
        self._change = change

    def statements(self, parameters):
        (p,) = parameters
        return self._change(
            {
                p.next("s"): f"SELECT {p.keys('s')}s.val AS val {p.source(p.slot('s'), 's')}",
                p.next(): f"SELECT {p.keys('w')}w.val AS val {p.source(p.name, 'w')}",
            }
        )

    def to_json(self):
        return {"kind": "own"}


@pytest.mark.parametrize(
    ("optimizer", "kind", "message"),
    [
        (Own(slots=None), SessionError, "slots is None; it must be a tuple of names"),
        (Own(slots="s"), SessionError, "slots is 's'; it must be a tuple of names"),
        (Own(slots=(1,)), SessionError, r"slots is \(1,\); it must be a tuple of names"),
        (Own(slots=("s", "s")), SessionError, "slots repeat"),
        (Own(change=lambda s: None), SessionError, "Own: its statements are a NoneType"),
        (Own(change=lambda s: list(s)), SessionError, "Own: its statements are a list"),
        (
            Own(change=lambda s: {**s, "w_next": 3}),
            SessionError,
            "Own: the statement 'w_next' is a int; it must be SQL text",
        ),
        (
            Own(change=lambda s: {**s, "w_next": "SELEC 1"}),
            InvalidSQL,
            "Own: the statement 'w_next': it must be a query, and begins with 'SELEC 1'",
        ),
        (
            Own(change=lambda s: {**s, "w_next": "SELECT i, val FROM w WHERE i > 0"}),
            SessionError,
            r"the statement 'w_next' has \(2,\) rows along \('i',\); its parameter has \(3,\)",
        ),
    ],
)
def test_optimizers_of_ones_own_that_do_not_fit(optimizer, kind, message, linear):
    with pytest.raises(kind, match=message):
        linear.session(optimizer=optimizer)


class Rate:
    """A schedule of one's own."""

    def __init__(self, rate):
        self._rate = rate

    def __call__(self, step):
        return self._rate

    def to_json(self):
        return {"kind": "rate"}


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize(
    "rate", [np.nan, np.inf, -1.0, None, "0.1", True, 1j, 10**400, np.ones(1), torch.ones(2)]
)
def test_a_schedule_that_gives_no_rate(rate, policy, linear, same_bits):
    session = linear.session(on_non_finite=policy)
    session.step(linear.batch_of(0))
    before = session.state()
    session.learning_rate = Rate(rate)
    with pytest.raises(SessionError, match=r"learning_rate: the schedule Rate gives .* for step 1"):
        session.step(linear.batch_of(1))
    assert same_bits(session.state(), before)
    assert session.data_position == 1
    session.learning_rate = 0.1
    assert session.step(linear.batch_of(1)).valid


@pytest.mark.parametrize("rate", [np.float32(0.5), torch.tensor(0.5), np.array(0.5), 1])
def test_a_rate_may_be_a_number_of_any_library(rate, linear):
    session = linear.session(learning_rate=Rate(rate))
    assert session.step(linear.batch_of(0)).learning_rate == float(rate)


def test_weights_keep_the_places_that_a_dataarray_names(embedding, same_bits):
    session = embedding.session(optimizer=SGD())
    session.step(embedding.batch_of(0))
    before = session.state()
    weights = embedding.parameters()
    words = weights["table_of_words"]
    square = weight(np.zeros((4, 4)), "v", "c").transpose("c", "v")
    for changed, kind, message in (
        (words.transpose("c", "v"), ShapeError, r"dims \('c', 'v'\), the table \('v', 'c'\)"),
        (square, ShapeError, "transpose or rename them"),
        (words.isel(v=slice(None, None, -1)), SessionError, "other coordinates along 'v'"),
    ):
        with pytest.raises(kind, match=message):
            session.set_weights({**weights, "table_of_words": changed})
    assert same_bits(session.state(), before)
    session.set_weights(session.dataset())
    assert session.step_count == 0


def test_scalars_of_any_name_can_be_evaluated(linear):
    session = linear.session(hyper={"Rate": 1.0, 'odd "name"': 2.0})
    assert session.evaluate(linear.batch_of(0)) == session.step(linear.batch_of(0)).loss


def test_a_session_is_neither_copied_nor_pickled(linear):
    session = linear.session()
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(SessionError, match="neither copied nor pickled; save its state"):
            make(session)
