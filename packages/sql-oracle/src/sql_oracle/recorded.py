"""Recorded training runs of the original nanoGPT model, as numpy files.

A run's keys: ``config`` (layers, heads, width, context, batch, steps, seed, first iteration,
vocabulary); ``stepN/{lr,tokens,targets,loss,grad_norm}``; and per parameter
``stepN/{grad,weight,exp_avg,exp_avg_sq}/NAME``, the gradient raw and the others after the step.
A full file holds whole arrays and ``init/NAME``; a summary holds ``...:norm`` and ``...:sample``
for each of them with the flat C-order positions in ``sample_index/NAME``, and the initial weights
and batches follow from the seed.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sql_oracle.errors import MissingFile
from sql_oracle.mapping import Array, gpt_mapping
from sql_oracle.reference import GPTConfig

ENVIRONMENT_VARIABLE = "SQL_ORACLE_RECORDED"
SMALL_RUN = "nanogpt_small.npz"
FULL_SUMMARY = "nanogpt_full_summary.npz"
KINDS = ("grad", "weight", "exp_avg", "exp_avg_sq")

#: How the recorded runs were trained.
BETAS = (0.9, 0.99)
EPS = 1e-8
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0


def recorded_folder() -> Path | None:
    """The folder that the environment variable names, or None when it is not set.

    Raises:
        MissingFile: it is set, and no such folder exists.
    """
    value = os.environ.get(ENVIRONMENT_VARIABLE)
    if not value:
        return None
    folder = Path(value)
    if not folder.is_dir():
        raise MissingFile(f"{ENVIRONMENT_VARIABLE} names {value}, which is not a folder")
    return folder


@dataclass(frozen=True, slots=True)
class Summary:
    """What a summary keeps of one array: its norm and some entries.

    Attributes:
        norm: Euclidean norm of the whole array.
        positions: flat C-order positions of the sampled entries.
        sample: the entries there.
    """

    norm: float
    positions: npt.NDArray[np.int64]
    sample: npt.NDArray[np.float64]

    def error(self, array: Array) -> float:
        """Largest relative error of the norm and of the sample against this record."""
        flat = np.asarray(array, dtype=np.float64).ravel()
        norm_error = abs(float(np.linalg.norm(flat)) - self.norm) / self.norm
        difference = np.linalg.norm(flat[self.positions] - self.sample)
        scale = float(np.linalg.norm(self.sample))
        return max(norm_error, float(difference) / scale if scale else float(difference))


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One recorded update.

    Attributes:
        learning_rate: of this update.
        batch: int64 ``tokens`` and ``targets``, (b, t).
        loss: before the update.
        grad_norm: global norm of the raw gradients.
        arrays: per kind ("grad", "weight", "exp_avg", "exp_avg_sq") and parameter name, the whole
            array or a :class:`Summary`.
    """

    learning_rate: float
    batch: dict[str, npt.NDArray[np.int64]]
    loss: float
    grad_norm: float
    arrays: dict[str, dict[str, Array | Summary]]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recorded run.

    Attributes:
        config: sizes of the model.
        batch_size: sequences in a batch.
        seed: of the initial weights and the batches.
        names: parameter names, in the file's order.
        initial: weights before the first update, named by parameter.
        steps: the updates in order.
    """

    config: GPTConfig
    batch_size: int
    seed: int
    names: tuple[str, ...]
    initial: dict[str, Array]
    steps: tuple[RecordedStep, ...]

    def initial_tables(self) -> dict[str, Array]:
        """The initial weights in the layout of the SQL tables."""
        return gpt_mapping(self.config).to_tables(self.initial)

    def tables(self, step: int, kind: str) -> dict[str, Array]:
        """Arrays of one kind after one step, in the layout of the SQL tables.

        Raises:
            MissingFile: the run is a summary, which has no whole arrays.
        """
        arrays: dict[str, Array] = {}
        for name, value in self.steps[step].arrays[kind].items():
            if isinstance(value, Summary):
                raise MissingFile("this recorded run is a summary and has no whole arrays")
            arrays[name] = value
        return gpt_mapping(self.config).to_tables(arrays)


def initial_weights(config: GPTConfig, seed: int) -> dict[str, Array]:
    """The weights the recorded runs began with: float32 numbers, as float64 arrays.

    Drawn from ``numpy.random.default_rng(seed)`` over the parameter names in sorted order:
    one-dimensional tensors ``1 + 0.1 z``, others ``0.02 z``, residual projections
    ``0.02 z / sqrt(2 layers)``.
    """
    generator = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    shapes = nanogpt_shapes(config)
    for name in sorted(shapes):
        z = generator.standard_normal(shapes[name])
        if z.ndim == 1:
            z = 1.0 + 0.1 * z
        elif name.endswith("c_proj.weight"):
            z = 0.02 / np.sqrt(2 * config.layers) * z
        else:
            z = 0.02 * z
        weights[name] = z.astype(np.float32).astype(np.float64)
    return weights


def nanogpt_shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of nanoGPT's parameters without biases, (out, in) for linear layers."""
    width = config.width
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (config.vocabulary, width),
        "transformer.wpe.weight": (config.context, width),
    }
    for layer in range(config.layers):
        prefix = f"transformer.h.{layer}."
        shapes[prefix + "ln_1.weight"] = (width,)
        shapes[prefix + "attn.c_attn.weight"] = (3 * width, width)
        shapes[prefix + "attn.c_proj.weight"] = (width, width)
        shapes[prefix + "ln_2.weight"] = (width,)
        shapes[prefix + "mlp.c_fc.weight"] = (4 * width, width)
        shapes[prefix + "mlp.c_proj.weight"] = (width, 4 * width)
    shapes["transformer.ln_f.weight"] = (width,)
    return shapes


def read_run(path: str | Path) -> RecordedRun:
    """Read a full run or a summary.

    Raises:
        MissingFile: no such file, or it is not a recorded run.
    """
    try:
        with np.load(path) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except (OSError, ValueError) as error:
        raise MissingFile(f"cannot read the recorded run {path}: {error}") from error
    try:
        return _parse(arrays)
    except KeyError as error:
        raise MissingFile(f"{path} is not a recorded run: key {error} is missing") from error


def _parse(arrays: dict[str, npt.NDArray[np.generic]]) -> RecordedRun:
    layers, heads, width, context, batch, steps, seed, _, vocabulary = (
        int(value) for value in arrays["config"]
    )
    config = GPTConfig(layers, heads, width, context, vocabulary)
    names = tuple(nanogpt_shapes(config))
    summarised = f"sample_index/{names[0]}" in arrays
    if summarised:
        initial = initial_weights(config, seed)
    else:
        initial = {name: arrays[f"init/{name}"] for name in names}

    def entry(step: int, kind: str, name: str) -> Array | Summary:
        key = f"step{step}/{kind}/{name}"
        if not summarised:
            return arrays[key]
        return Summary(
            norm=float(arrays[key + ":norm"]),
            positions=arrays[f"sample_index/{name}"].astype(np.int64),
            sample=arrays[key + ":sample"].astype(np.float64),
        )

    return RecordedRun(
        config=config,
        batch_size=batch,
        seed=seed,
        names=names,
        initial=initial,
        steps=tuple(
            RecordedStep(
                learning_rate=float(arrays[f"step{step}/lr"]),
                batch={
                    key: arrays[f"step{step}/{key}"].astype(np.int64)
                    for key in ("tokens", "targets")
                },
                loss=float(arrays[f"step{step}/loss"]),
                grad_norm=float(arrays[f"step{step}/grad_norm"]),
                arrays={kind: {name: entry(step, kind, name) for name in names} for kind in KINDS},
            )
            for step in range(steps)
        ),
    )
