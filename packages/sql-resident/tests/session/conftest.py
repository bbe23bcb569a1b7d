"""Small models in SQL, each with the same loss in torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import sql_resident
import torch
import xarray as xr
from sql_resident import SGD, BatchInput, TrainingSession

Arrays = dict[str, np.ndarray]


def table(values: np.ndarray, *dims: str) -> xr.DataArray:
    coords = {dim: np.arange(size) for dim, size in zip(dims, values.shape, strict=True)}
    return xr.DataArray(values, coords, dims, name="val")


@dataclass(frozen=True)
class Problem:
    """A loss in SQL and in torch, where its weights start, and its batches."""

    sql: str
    dims: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    batch: Mapping[str, BatchInput]
    loss: Callable[[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]], torch.Tensor]
    hyper: Mapping[str, float] = field(default_factory=dict)

    def weights(self, dtype: str = "float64") -> Arrays:
        """Initial weights, always the same."""
        rng = np.random.default_rng(3)
        return {n: (0.5 * rng.normal(size=s)).astype(dtype) for n, s in self.shapes.items()}

    def parameters(self, dtype: str = "float64") -> dict[str, xr.DataArray]:
        return {n: table(a, *self.dims[n]) for n, a in self.weights(dtype).items()}

    def batch_of(self, position: int, rows: int | None = None) -> Arrays:
        """The batch of a position, a pure function of it."""
        rng = np.random.default_rng((7, position))
        arrays = {}
        for name, given in self.batch.items():
            shape = (given.shape[0] if rows is None else rows, *given.shape[1:])
            if given.domain is None:
                arrays[name] = rng.normal(size=shape)
            else:
                arrays[name] = rng.integers(0, given.domain, size=shape)
        return arrays

    def session(self, **options) -> TrainingSession:
        given = {"optimizer": SGD(momentum=0.0), "learning_rate": 0.1, "precision": "float64"}
        given |= {"parameters": self.parameters(), "batch": self.batch, "loss": self.sql}
        given |= {"hyper": self.hyper, **options}
        return TrainingSession(**given)

    def torch_loss(self, weights, batch, dtype=torch.float64) -> torch.Tensor:
        tensors = {n: torch.as_tensor(a) for n, a in batch.items()}
        tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
        return self.loss(weights, tensors)


LINEAR = Problem(
    sql="""
WITH predicted AS (
    SELECT x.b, SUM(x.val * w.val) AS val FROM x JOIN w ON x.i = w.i GROUP BY x.b
)
SELECT AVG((p.val - y.val) * (p.val - y.val)) AS loss FROM predicted p JOIN y ON p.b = y.b
""",
    dims={"w": ("i",)},
    shapes={"w": (3,)},
    batch={"x": BatchInput(("b", "i"), (8, 3)), "y": BatchInput(("b",), (8,))},
    loss=lambda w, d: ((d["x"] @ w["w"] - d["y"]) ** 2).mean(),
)

MLP = Problem(
    sql="""
WITH hidden AS (
    SELECT x.b, w.j, SUM(x.val * w.val) AS val FROM x JOIN w1 w ON x.i = w.i GROUP BY x.b, w.j
),
activated AS (
    SELECT h.b, h.j, TANH(h.val + bias.val) AS val FROM hidden h JOIN bias ON h.j = bias.j
),
logits AS (
    SELECT a.b, w.k, SUM(a.val * w.val) AS val
    FROM activated a JOIN w2 w ON a.j = w.j GROUP BY a.b, w.k
),
total AS (SELECT b, SUM(EXP(val)) AS val FROM logits GROUP BY b)
SELECT AVG(LN(t.val) - l.val) AS loss
FROM total t JOIN labels y ON t.b = y.b JOIN logits l ON l.b = y.b AND l.k = y.class
""",
    dims={"w1": ("i", "j"), "bias": ("j",), "w2": ("j", "k")},
    shapes={"w1": (5, 4), "bias": (4,), "w2": (4, 3)},
    batch={
        "x": BatchInput(("b", "i"), (6, 5)),
        "labels": BatchInput(("b",), (6,), column="class", domain=3),
    },
    loss=lambda w, d: torch.nn.functional.cross_entropy(
        torch.tanh(d["x"] @ w["w1"] + w["bias"]) @ w["w2"], d["labels"]
    ),
)

EMBEDDING = Problem(
    sql="""
WITH embedded AS (
    SELECT t.b, e.c, AVG(e.val) AS val
    FROM tokens t JOIN table_of_words e ON t.token = e.v GROUP BY t.b, e.c
),
kept AS (
    SELECT e.b, e.c, e.val * dropout_keep(h.dropout, h.seed, h.step, 0, e.b, e.c) AS val
    FROM embedded e CROSS JOIN hyper h
),
score AS (
    SELECT k.b, SUM(k.val * w.val) AS val FROM kept k JOIN readout w ON k.c = w.c GROUP BY k.b
)
SELECT AVG((s.val - y.val) * (s.val - y.val)) AS loss FROM score s JOIN y ON s.b = y.b
""",
    dims={"table_of_words": ("v", "c"), "readout": ("c",)},
    shapes={"table_of_words": (7, 4), "readout": (4,)},
    batch={
        "tokens": BatchInput(("b", "t"), (6, 5), column="token", domain=7),
        "y": BatchInput(("b",), (6,)),
    },
    loss=lambda w, d: (
        (w["table_of_words"][d["tokens"]].mean(1) @ w["readout"] - d["y"]) ** 2
    ).mean(),
    hyper={"dropout": 0.0},
)

PROBLEMS = {"linear": LINEAR, "mlp": MLP, "embedding": EMBEDDING}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    assert torch.is_grad_enabled()


@pytest.fixture
def problems() -> dict[str, Problem]:
    """The problems by name."""
    return PROBLEMS


@pytest.fixture
def linear() -> Problem:
    return LINEAR


@pytest.fixture
def mlp() -> Problem:
    return MLP


@pytest.fixture
def embedding() -> Problem:
    return EMBEDDING


def _same_bits(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and left[n].tobytes() == right[n].tobytes() for n in left
    )


@pytest.fixture
def same_bits() -> Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], bool]:
    """Whether two states are the same, bit for bit."""
    return _same_bits


PACKAGE = str(Path(sql_resident.__file__).parent)


class LineInterrupt:
    """A trace function that raises at the n-th line of this package."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def _interrupted_at_line(place: int, action: Callable[..., object], *arguments: object) -> bool:
    sys.settrace(LineInterrupt(place))
    try:
        action(*arguments)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.fixture
def interrupted_at_line() -> Callable[..., bool]:
    """Calls a function with an interrupt at the n-th line of the package; whether it got there."""
    return _interrupted_at_line


def _resume_elsewhere(folder: Path, total: int, *how: str, **environment: str) -> dict[int, Arrays]:
    script = Path(__file__).parent / "resumed_run.py"
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(total), *how],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            # The order of sums depends on the number of threads.
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    ends = {}
    for path in folder.glob("*.end.npz"):
        with np.load(path) as arrays:
            ends[int(path.name.partition(".")[0])] = dict(arrays)
    return ends


@pytest.fixture
def resume_elsewhere() -> Callable[..., dict[int, Arrays]]:
    """Resumes a folder's checkpoints in a new process; what each came to, by its update."""
    return _resume_elsewhere
