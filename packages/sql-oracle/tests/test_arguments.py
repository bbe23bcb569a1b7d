"""Every wrong argument of ``check`` is a typed error before, or instead of, a comparison."""

import numpy as np
import pytest
import torch
import xarray as xr
from sql_oracle import (
    AdamWOptions,
    BatchError,
    GPTConfig,
    Mapping,
    MappingError,
    ModelMismatch,
    OracleError,
    StateMismatch,
    TensorMap,
    check,
)
from sql_resident import AdamW, BatchInput, TrainingSession


def session():
    return TrainingSession(
        loss="""
            WITH p AS (
                SELECT x.b, SUM(x.val * w.val) AS val FROM x JOIN w ON x.i = w.i GROUP BY x.b
            )
            SELECT AVG((p.val - y.val) * (p.val - y.val)) AS loss FROM p JOIN y ON p.b = y.b""",
        parameters={"w": xr.DataArray(np.ones(3), {"i": np.arange(3)}, name="val")},
        batch={"x": BatchInput(("b", "i"), (8, 3)), "y": BatchInput(("b",), (8,))},
        optimizer=AdamW(weight_decay=0.01),
        clip_norm=1.0,
        learning_rate=0.1,
        precision="float64",
    )


@pytest.fixture(scope="module")
def made():
    """One session for all: a refused check does not train it."""
    return session()


def linear(**options):
    return torch.nn.Linear(3, 1, **{"bias": False, **options})


def batch():
    draw = np.random.default_rng(0).standard_normal
    return {"x": draw((8, 3)), "y": draw(8)}


def mean_square(module, b):
    return ((module(b["x"])[:, 0] - b["y"]) ** 2).mean()


def run(made, **changes):
    given = {
        "session": made,
        "module": linear(),
        "mapping": Mapping({"w": TensorMap("weight", shape=(3,))}),
        "batches": [batch()],
        "optimizer": AdamWOptions(weight_decay=0.01),
        "loss": mean_square,
        "learning_rate": 0.1,
        "clip_norm": 1.0,
        "precision": "float64",
    }
    return check(**{**given, **changes})


def test_right_arguments_pass():
    assert run(session()).passed


WRONG = {
    "a number for a session": ({"session": 3}, OracleError, "session is of type int"),
    "a session's class": ({"session": TrainingSession}, OracleError, "the class TrainingSession"),
    "no module": ({"module": None}, OracleError, "module is None; it must be a torch"),
    "a module's class": ({"module": torch.nn.Linear}, OracleError, "module is the class Linear"),
    "a frozen module": (
        {"module": linear().requires_grad_(False)},
        OracleError,
        "its parameters weight take no gradient",
    ),
    "another shape": (
        {"module": torch.nn.Linear(4, 1, bias=False)},
        MappingError,
        r"a tensor of shape \(1, 4\) does not reshape to \(3,\)",
    ),
    "a parameter left out": (
        {"module": linear(bias=True)},
        MappingError,
        "module parameters without a table: bias",
    ),
    "both sides left out": (
        {"mapping": Mapping({})},
        MappingError,
        "SQL tables without a parameter: w; module parameters without a table: weight",
    ),
    "a dictionary for a mapping": ({"mapping": {"w": "weight"}}, OracleError, "mapping is of type"),
    "no batches": ({"batches": None}, BatchError, "batches is None"),
    "an empty list": ({"batches": []}, BatchError, "0 batches were given"),
    "one batch": ({"batches": batch()}, BatchError, "batches is of type dict; it must be a list"),
    "words": ({"batches": "x"}, BatchError, "batches is of type str"),
    "steps below one": ({"steps": -1}, BatchError, "steps is -1"),
    "no whole steps": ({"steps": 1.5}, BatchError, "steps is 1.5"),
    "a truth value for steps": ({"steps": True}, BatchError, "steps is True"),
    "more steps than batches": ({"steps": 2}, BatchError, "1 batches were given, 2 are needed"),
    "no optimizer": ({"optimizer": None}, OracleError, "optimizer is None"),
    "an optimizer in SQL": ({"optimizer": AdamW()}, OracleError, "optimizer is of type AdamW"),
    "an optimizer of torch": (
        {"optimizer": torch.optim.AdamW},
        OracleError,
        "optimizer is the class AdamW",
    ),
    "options that torch refuses": (
        {"optimizer": AdamWOptions(betas=(2.0, 0.9))},
        OracleError,
        "torch refuses its options: Invalid beta",
    ),
    "a slot of no session": (
        {"optimizer": AdamWOptions(slots={"q": "exp_avg"})},
        StateMismatch,
        "no optimizer slot 'q'",
    ),
    "a key of no state": (
        {"optimizer": AdamWOptions(slots={"m": "momentum"})},
        StateMismatch,
        "torch keeps no 'momentum' for the slot 'm'; it keeps exp_avg",
    ),
    "no loss": ({"loss": None}, BatchError, "loss is None; it must be a function"),
    "a loss of many values": (
        {"loss": lambda m, b: m(b["x"])},
        BatchError,
        r"loss has shape \(8, 1\), not one value",
    ),
    "a number for a loss": ({"loss": lambda m, b: 1.0}, BatchError, "of type float, not a tensor"),
    "a loss that gives nothing": ({"loss": lambda m, b: None}, BatchError, "None, not a tensor"),
    "a detached loss": (
        {"loss": lambda m, b: mean_square(m, b).detach()},
        BatchError,
        "loss has no gradient",
    ),
    "a complex loss": (
        {"loss": lambda m, b: 1j * mean_square(m, b)},
        BatchError,
        "loss is of type torch.complex128",
    ),
    "no rate": ({"learning_rate": None}, OracleError, "that of update 0 is None"),
    "words for a rate": ({"learning_rate": "x"}, OracleError, "that of update 0 is 'x'"),
    "a rate that is NaN": ({"learning_rate": np.nan}, OracleError, "that of update 0 is nan"),
    "a negative rate": ({"learning_rate": lambda step: -1.0}, OracleError, "update 0 is -1.0"),
    "words for a norm": ({"clip_norm": "x"}, OracleError, "clip_norm is 'x'"),
    "a negative norm": ({"clip_norm": -1.0}, OracleError, "clip_norm is -1.0"),
    "a norm that is NaN": ({"clip_norm": np.nan}, OracleError, "clip_norm is nan"),
    "an unknown precision": ({"precision": "float16"}, OracleError, "unknown precision 'float16'"),
    "no precision": ({"precision": None}, OracleError, "unknown precision None"),
    "an unknown device": ({"device": "tpu"}, OracleError, "device is 'tpu'; use 'cpu'"),
    "no device": ({"device": None}, OracleError, "device is None; use 'cpu'"),
    "no such device": ({"device": "cuda:99"}, OracleError, "torch finds .* CUDA devices"),
    "a number for a tolerance": ({"tolerance": 3}, OracleError, "tolerance is of type int"),
    "a number for a function": ({"before_step": 3}, OracleError, "before_step is of type int"),
    "a number for a callback": ({"on_step": 3}, OracleError, "on_step is of type int"),
    "a number for a class": ({"trainer": 3}, OracleError, "trainer is of type int"),
}


#: What shows only once the module or its optimizer has made a step, after the session's.
AFTER_A_STEP = [case for case, (changes, *_) in WRONG.items() if changes.get("loss") is not None]
AFTER_A_STEP += ["a slot of no session", "a key of no state"]


@pytest.mark.parametrize("case", [case for case in WRONG if case not in AFTER_A_STEP])
def test_a_wrong_argument_is_named_and_nothing_is_trained(case, made):
    changes, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        run(made, **changes)
    assert made.step_count == 0


@pytest.mark.parametrize("case", AFTER_A_STEP)
def test_what_shows_after_a_step_is_named(case):
    changes, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        run(session(), **changes)


def test_a_module_that_is_not_called_with_the_batches_names():
    made = session()
    given = {
        "optimizer": AdamWOptions(weight_decay=0.01),
        "learning_rate": 0.1,
        "precision": "float64",
    }
    mapping = Mapping({"w": TensorMap("weight", shape=(3,))})
    with pytest.raises(BatchError, match=r"forward.*cannot be called with x, y"):
        check(made, linear(), mapping, [batch()], **given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mapping(None), "tables is a NoneType; map table names"),
        (lambda: Mapping(["w"]), "tables is a list"),
        (lambda: Mapping({"w": 3}), "table w is mapped to 3; use a name or a TensorMap"),
        (lambda: TensorMap(3), "parameters is 3; use one name"),
        (lambda: TensorMap(()), r"parameters is \(\); use one name"),
        (lambda: TensorMap(("a", 1)), "use one name, or a tuple of names"),
        (lambda: TensorMap("a", shape=3), "a: shape is 3; use a tuple of whole numbers"),
        (lambda: TensorMap("a", shape="x"), "a: shape is 'x'"),
        (lambda: TensorMap("a", axes=(0.5,)), r"a: axes is \(0.5,\)"),
    ],
)
def test_wrong_mappings(make, message):
    with pytest.raises(MappingError, match=message):
        make()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": "6"}, "layers must be a whole number, it is '6'"),
        ({"layers": 1.5}, "layers must be a whole number, it is 1.5"),
        ({"heads": True}, "heads must be a whole number, it is True"),
        ({"heads": -1}, "heads must be at least 1, it is -1"),
        ({"width": 1, "heads": 1}, "width must be at least 2, it is 1"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(ModelMismatch, match=message):
        GPTConfig(**sizes)
