"""The run itself: session, updates, evaluations, and what is left at the end."""

import os
import statistics
import sys
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from sql_resident import (
    AdamW,
    BatchInput,
    StepReport,
    StopReason,
    TrainingSession,
    WarmupCosine,
    fit,
)
from sql_resident.gpt import TABLE_DIMS, GPTConfig, initial_weights, is_matrix, loss_sql
from tqdm import tqdm

from .batches import BatchSource, Stream
from .data import encode, find_text, split
from .errors import DemoError
from .metrics import Metrics, open_metrics
from .plots import plot_losses
from .sampling import SQLModel, characters
from .settings import Settings

__all__ = ["RECIPE_SCHEDULE", "build_session", "train"]

#: Learning rate of every run, however few of its updates are made.
RECIPE_SCHEDULE = WarmupCosine(peak=1e-3, floor=1e-4, warmup=100, total=5000)
_WEIGHT_DECAY = 0.1
_REPORTED_LOSSES = 5


def build_session(
    settings: Settings, weights: Mapping[str, npt.NDArray[np.floating]]
) -> TrainingSession:
    """The training session of ``settings``, starting from ``weights``.

    AdamW with betas (0.9, 0.99), weight decay 0.1 on matrices only, gradients clipped to a global
    norm of 1, and the learning rate of :data:`RECIPE_SCHEDULE`.
    """
    config = settings.model
    tokens = BatchInput(
        dims=("b", "t"),
        shape=(settings.batch, config.context),
        column="token",
        domain=config.vocabulary,
    )
    return TrainingSession(
        loss=loss_sql(config),
        parameters={name: _table(dims, weights[name]) for name, dims in TABLE_DIMS.items()},
        batch={"tokens": tokens, "targets": tokens},
        optimizer=AdamW(
            betas=(0.9, 0.99),
            eps=1e-8,
            weight_decay={n: _WEIGHT_DECAY if is_matrix(n) else 0.0 for n in TABLE_DIMS},
        ),
        clip_norm=1.0,
        learning_rate=RECIPE_SCHEDULE,
        hyper={"dropout": config.dropout},
        seed=settings.seed,
        device=settings.device,
        precision=settings.precision,
        compile=settings.compile,
    )


def train(settings: Settings) -> Metrics:
    """Make one run, printing what it does; returns its metrics."""
    config = settings.model
    started = time.perf_counter()
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"cannot make the folder {settings.output}: {error.strerror}") from error
    if settings.checkpoint is not None:
        _check_place(settings.checkpoint)
    text = find_text(settings.data, sha256=settings.data_sha256)
    print(f"text: {text.describe()}")
    training, validation = split(encode(text.characters), config.context)
    source = BatchSource(training, validation, settings.batch, config.context, settings.seed)
    print(f"model: {_sizes(config)}, {config.parameter_count:,} parameters")

    before = time.perf_counter()
    session = build_session(settings, initial_weights(config, settings.seed))
    print(
        f"session: {settings.device}, {settings.precision}, "
        f"made in {time.perf_counter() - before:.1f} s"
    )
    if settings.resume is not None:
        session.restore(settings.resume)
        print(f"resumed from {settings.resume} after update {session.step_count}")
        if session.step_count > settings.steps:
            raise DemoError(
                f"{settings.resume} already has {session.step_count} updates, more than "
                f"--steps {settings.steps}"
            )

    first_step = session.step_count
    with open_metrics(settings.output / "metrics.jsonl", first_step=first_step) as metrics:
        reason = _make_updates(settings, session, source, metrics, started)
    if settings.checkpoint is not None:
        session.save(settings.checkpoint)
        print(f"checkpoint: {settings.checkpoint}")
    if reason is StopReason.INTERRUPT:
        raise KeyboardInterrupt
    _report(metrics, first_step)
    print(f"peak memory: {_peak_memory(settings.device)}")
    picture = settings.output / "loss.png"
    try:
        plot_losses(picture, metrics.updates, metrics.evaluations)
    except OSError as error:
        raise DemoError(f"cannot write {picture}: {error.strerror or error}") from error
    _sample(settings, session)
    print(f"written: {settings.output}/metrics.jsonl, loss.png, sample.txt")
    return metrics


def _check_place(checkpoint: Path) -> None:
    """Refuse, before hours of updates, a place that no checkpoint can be written to."""
    folder = checkpoint.absolute().parent
    if not os.path.isdir(folder):
        raise DemoError(f"--checkpoint {checkpoint}: there is no folder {folder}; make it first")
    if os.path.isdir(checkpoint):
        raise DemoError(f"--checkpoint {checkpoint} is a folder; name a file in it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DemoError(f"--checkpoint {checkpoint}: the folder {folder} cannot be written to")


def _make_updates(
    settings: Settings,
    session: TrainingSession,
    source: BatchSource,
    metrics: Metrics,
    started: float,
) -> StopReason:
    """Train until something ends it; returns what."""
    if settings.eval_at_start and session.step_count == 0:
        _evaluate(settings, session, source, metrics)
    left = None
    if settings.max_seconds is not None:
        left = max(0.0, settings.max_seconds - (time.perf_counter() - started))
    with tqdm(total=settings.steps, initial=session.step_count, unit="update") as bar:
        watch = _Watch()

        def note(report: StepReport) -> None:
            seconds = watch.lap()
            metrics.update(
                step=report.step,
                loss=report.loss,
                grad_norm=report.grad_norm,
                learning_rate=report.learning_rate,
                seconds=seconds,
            )
            bar.set_postfix(loss=f"{report.loss:.4f}", ms=f"{1e3 * seconds:.1f}", refresh=False)
            bar.update()

        def validate(session: TrainingSession) -> float:
            loss = _evaluate(settings, session, source, metrics)
            if settings.checkpoint is not None:
                session.save(settings.checkpoint)
            watch.lap()
            return loss

        result = fit(
            session,
            lambda position: source.draw(Stream.UPDATE, position),
            steps=settings.steps,
            max_time=left,
            validate=validate,
            validate_every=settings.eval_interval,
            on_report=note,
        )
    if result.reason is StopReason.TIME:
        elapsed = time.perf_counter() - started
        print(f"stopped by --max-time after {session.step_count} updates, {elapsed:.0f} s")
    return result.reason


class _Watch:
    """Seconds since it was last looked at."""

    def __init__(self) -> None:
        self._before = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        before, self._before = self._before, now
        return now - before


def _evaluate(
    settings: Settings, session: TrainingSession, source: BatchSource, metrics: Metrics
) -> float:
    """Evaluate both parts of the text; returns the validation loss."""
    step, before = session.step_count, time.perf_counter()
    losses = {}
    streams = {"training": Stream.EVALUATE_TRAINING, "validation": Stream.EVALUATE_VALIDATION}
    for name, stream in streams.items():
        indices = tqdm(
            range(settings.eval_batches), desc=f"evaluate {name}", unit="batch", leave=False
        )
        losses[name] = statistics.fmean(
            session.evaluate(source.draw(stream, step, index)) for index in indices
        )
    metrics.evaluation(
        step=step,
        training_loss=losses["training"],
        validation_loss=losses["validation"],
        seconds=time.perf_counter() - before,
    )
    tqdm.write(
        f"after {step} updates: loss {losses['training']:.4f} training, "
        f"{losses['validation']:.4f} validation"
    )
    return losses["validation"]


def _report(metrics: Metrics, first_step: int) -> None:
    updates = [record for record in metrics.updates if record["step"] > first_step]
    if not updates:
        print("no update was made")
        return
    for record in updates[:_REPORTED_LOSSES]:
        print(f"loss of update {record['step']}: {record['loss']!r}")
    if len(updates) > _REPORTED_LOSSES:
        print(f"loss of update {updates[-1]['step']}: {updates[-1]['loss']!r}")
    first, *later = [record["seconds"] for record in updates]
    line = f"time: first update {first:.2f} s"
    if later:
        line += f", then {1e3 * statistics.median(later):.1f} ms an update (median of {len(later)})"
    print(line)


def _sample(settings: Settings, session: TrainingSession) -> None:
    if settings.sample_length == 0:
        sample = ""
    else:
        state = session.state()
        model = SQLModel(
            settings.model,
            {name: state[name] for name in TABLE_DIMS},
            device=settings.device,
            precision=settings.precision,
        )
        started = time.perf_counter()
        drawn = []
        for character in islice(characters(model, seed=settings.seed), settings.sample_length):
            drawn.append(character)
            if time.perf_counter() - started > settings.sample_seconds:
                break
        sample = "".join(drawn)
        cut = ""
        if len(sample) < settings.sample_length:
            cut = (
                f" of {settings.sample_length}, cut after {settings.sample_seconds:g} s "
                f"(--sample-seconds)"
            )
        print(f"sample ({len(sample)} characters{cut}):\n{sample}")
    path = settings.output / "sample.txt"
    try:
        path.write_text(sample, encoding="utf-8")
    except OSError as error:
        raise DemoError(f"cannot write {path}: {error.strerror or error}") from error


def _table(dims: tuple[str, ...], values: npt.NDArray[np.floating]) -> xr.DataArray:
    coords = {dim: np.arange(size) for dim, size in zip(dims, values.shape, strict=True)}
    return xr.DataArray(values, dims=dims, coords=coords)


def _sizes(config: GPTConfig) -> str:
    return (
        f"{config.layers} layers, {config.heads} heads, width {config.width}, "
        f"context {config.context}, dropout {config.dropout:g}"
    )


def _peak_memory(device: str) -> str:
    try:
        import resource
    except ImportError:  # Windows has none
        line = "of the process not known on this system"
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
        line = f"{peak * unit / 2**30:.2f} GiB of the process"
    if device.startswith("cuda"):
        line += f", {torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB on {device}"
    return line
