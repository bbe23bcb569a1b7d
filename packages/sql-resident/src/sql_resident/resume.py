"""A session's state as a checkpoint, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from . import schedules
from .buffers import Progress
from .checkpoint import Checkpoint, ExpectedState, JsonValue, load, make_checkpoint, sql_hash
from .errors import CheckpointError, SessionError
from .inputs import checked_hyper


@dataclass(frozen=True, slots=True)
class Restored:
    """A state read from a checkpoint and found to fit."""

    arrays: Mapping[str, torch.Tensor]
    progress: Progress


def checkpoint_of(
    arrays: Mapping[str, np.ndarray],
    progress: Progress,
    step_sql: str,
    configuration: Mapping[str, JsonValue],
    metrics: Mapping[str, float] | None,
) -> Checkpoint:
    """The checkpoint of a state; ``arrays`` are handed over.

    Args:
        configuration: further facts to record; ``hyper`` is added.
        metrics: measured values, such as a validation loss.
    """
    return make_checkpoint(
        arrays,
        step=progress.step,
        seed=progress.seed,
        data_position=progress.data_position,
        schedule=progress.schedule.to_json(),
        configuration={**configuration, "hyper": dict(progress.hyper)},
        sql_hash=sql_hash(step_sql),
        counters={"steps": progress.step, "skipped": progress.skipped},
        metrics=metrics,
        copy=False,
    )


def read_state(
    path: str | os.PathLike[str],
    current: Mapping[str, torch.Tensor],
    progress: Progress,
    step_sql: str,
) -> Restored:
    """The state of a checkpoint, which must be one of the same step.

    Raises:
        CheckpointError: it is damaged, of another model, not finite, or has a schedule that this
            process does not know, or other scalars.
    """
    like = {
        name: np.broadcast_to(np.zeros((), str(t.dtype).removeprefix("torch.")), t.shape)
        for name, t in current.items()
    }
    checkpoint = load(path, ExpectedState.of(like, sql_hash(step_sql)))
    manifest = checkpoint.manifest
    position = manifest.data_position
    if isinstance(position, bool) or not isinstance(position, int) or position < manifest.step:
        raise CheckpointError(
            f"{path}: its data position is {position!r}, not a number of at least its step, "
            f"{manifest.step}: it was not written by a session",
            path=path,
        )
    for what, number in (("step", manifest.step), ("seed", manifest.seed), ("position", position)):
        if number >= 2**63:
            raise CheckpointError(
                f"{path}: its {what} is {number}, which is no number of a session", path=path
            )
    for name, array in checkpoint.arrays.items():
        if not np.isfinite(array).all():
            raise CheckpointError(
                f"{path}: the array {name!r} has values that are not finite: it was not written "
                "by a session",
                path=path,
                member=name,
            )
    arrays = {name: torch.from_numpy(np.array(a)) for name, a in checkpoint.arrays.items()}
    restored = Progress(
        step=manifest.step,
        skipped=position - manifest.step,
        seed=manifest.seed,
        schedule=_schedule(path, manifest.schedule, progress),
        hyper=_hyper(path, manifest.configuration, progress),
    )
    return Restored(arrays, restored)


def _schedule(
    path: str | os.PathLike[str], found: JsonValue, progress: Progress
) -> schedules.Schedule:
    """The checkpoint's schedule; a schedule of the user's own must be the session's."""
    if found == progress.schedule.to_json():
        return progress.schedule
    try:
        return schedules.from_json(found)
    except SessionError as error:
        raise CheckpointError(
            f"{path}: its learning-rate schedule is neither the session's nor one of this "
            f"package: {error}",
            path=path,
        ) from error


def _hyper(
    path: str | os.PathLike[str], configuration: JsonValue, progress: Progress
) -> dict[str, float]:
    found = configuration.get("hyper") if isinstance(configuration, Mapping) else None
    if not isinstance(found, Mapping) or set(found) != set(progress.hyper):
        names = sorted(found) if isinstance(found, Mapping) else None
        raise CheckpointError(
            f"{path}: its scalars of hyper are {names}, the session's {sorted(progress.hyper)}",
            path=path,
        )
    try:
        return checked_hyper(found, None)
    except SessionError as error:
        raise CheckpointError(f"{path}: {error}", path=path) from error
