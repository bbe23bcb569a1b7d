"""Learning-rate schedules: immutable pure functions of the step, serialisable as JSON.

``schedule(step)`` is the learning rate of the update with the 0-based number ``step``. A schedule
has no state, so restoring its parameters and the step restores the learning rate exactly.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import ClassVar, Protocol, SupportsIndex, runtime_checkable

from sql_resident.arguments import real
from sql_resident.errors import SessionError


@runtime_checkable
class Schedule(Protocol):
    """A learning rate as a function of the 0-based step."""

    def __call__(self, step: SupportsIndex) -> float:
        """Return the learning rate of update ``step``."""
        ...

    def to_json(self) -> dict[str, str | int | float]:
        """Return a JSON object from which ``from_json`` makes an equal schedule."""
        ...


@dataclass(frozen=True, slots=True)
class _Named:
    """Serialisation shared by the schedules of the table ``SCHEDULES``."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, str | int | float]:
        """Return a JSON object from which ``from_json`` makes an equal schedule."""
        return {"kind": self.kind, **asdict(self)}

    def _rate(self, name: str, *, positive: bool = False) -> None:
        value = real(getattr(self, name))
        if value is None:
            raise self._invalid(name, "a number")
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            raise self._invalid(name, "finite and " + ("positive" if positive else "not negative"))
        object.__setattr__(self, name, value)

    def _count(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._invalid(name, "an int")
        if value < least:
            raise self._invalid(name, f"at least {least}")

    def _invalid(self, name: str, requirement: str) -> SessionError:
        return SessionError(
            f"{type(self).__name__}: {name} is {getattr(self, name)!r}; it must be {requirement}"
        )


@dataclass(frozen=True, slots=True)
class Constant(_Named):
    """The same learning rate at every step: ``lr``.

    Raises:
        SessionError: ``lr`` is negative or not finite.
    """

    kind: ClassVar[str] = "constant"
    lr: float

    def __post_init__(self) -> None:
        self._rate("lr")

    def __call__(self, step: SupportsIndex) -> float:
        """Return ``lr``."""
        _step(step)
        return self.lr


@dataclass(frozen=True, slots=True)
class _WarmupDecay(_Named):
    """Linear warm-up to ``peak``, then a decay to ``floor`` that ends at step ``total``."""

    peak: float
    floor: float
    warmup: int
    total: int

    def __post_init__(self) -> None:
        self._rate("peak", positive=True)
        self._rate("floor")
        self._count("warmup", 0)
        self._count("total", 1)
        if self.floor > self.peak:
            raise self._invalid("floor", f"at most the peak, {self.peak}")
        if self.warmup >= self.total:
            raise self._invalid("warmup", f"below the total of {self.total} steps")

    def __call__(self, step: SupportsIndex) -> float:
        """Return the learning rate of update ``step``."""
        number = _step(step)
        if number < self.warmup:
            return self.peak * (number + 1) / (self.warmup + 1)
        if number >= self.total:
            return self.floor
        remaining = self._remaining((number - self.warmup) / (self.total - self.warmup))
        return self.floor + remaining * (self.peak - self.floor)

    def _remaining(self, progress: float) -> float:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class WarmupCosine(_WarmupDecay):
    """Linear warm-up, then a half cosine.

    With k the step, W ``warmup`` and T ``total``::

        lr(k) = peak (k + 1) / (W + 1)                                         k < W
        lr(k) = floor + (peak - floor) (1 + cos(pi (k - W) / (T - W))) / 2     W <= k < T
        lr(k) = floor                                                          k >= T

    Source: Loshchilov and Hutter 2017, "SGDR: stochastic gradient descent with warm restarts",
    equation 5, without restarts; the warm-up is nanoGPT's, which is never 0.

    Raises:
        SessionError: not ``0 <= floor <= peak``, ``peak > 0`` and ``0 <= warmup < total``.
    """

    kind: ClassVar[str] = "warmup_cosine"

    def _remaining(self, progress: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True)
class WarmupLinear(_WarmupDecay):
    """Linear warm-up, then a straight line.

    With k the step, W ``warmup`` and T ``total``::

        lr(k) = peak (k + 1) / (W + 1)                                  k < W
        lr(k) = floor + (peak - floor) (1 - (k - W) / (T - W))          W <= k < T
        lr(k) = floor                                                   k >= T

    Source: Devlin et al. 2019, "BERT", appendix A.2 (linear warm-up and linear decay).

    Raises:
        SessionError: not ``0 <= floor <= peak``, ``peak > 0`` and ``0 <= warmup < total``.
    """

    kind: ClassVar[str] = "warmup_linear"

    def _remaining(self, progress: float) -> float:
        return 1.0 - progress


@dataclass(frozen=True, slots=True)
class StepDecay(_Named):
    """A learning rate multiplied by ``factor`` after every ``every`` steps.

    ``lr(k) = lr * factor ** (k // every)``

    Source: He et al. 2016, "Deep residual learning for image recognition", section 3.4 (the rate
    is divided by 10 at plateaus), with plateaus of equal length.

    Raises:
        SessionError: not ``lr >= 0``, ``0 < factor <= 1`` and ``every >= 1``.
    """

    kind: ClassVar[str] = "step_decay"
    lr: float
    factor: float
    every: int

    def __post_init__(self) -> None:
        self._rate("lr")
        self._rate("factor", positive=True)
        self._count("every", 1)
        if self.factor > 1:
            raise self._invalid("factor", "at most 1")

    def __call__(self, step: SupportsIndex) -> float:
        """Return the learning rate of update ``step``."""
        return self.lr * math.pow(self.factor, _step(step) // self.every)


SCHEDULES: Mapping[str, type[Constant | WarmupCosine | WarmupLinear | StepDecay]] = (
    MappingProxyType(
        {schedule.kind: schedule for schedule in (Constant, WarmupCosine, WarmupLinear, StepDecay)}
    )
)


def as_schedule(learning_rate: float | Schedule) -> Schedule:
    """Return ``learning_rate`` if it is a schedule, else the constant one.

    Raises:
        SessionError: it is neither a schedule nor a valid rate.
    """
    if isinstance(learning_rate, type) or (
        callable(learning_rate) and not isinstance(learning_rate, Schedule)
    ):
        raise SessionError(
            f"learning_rate is {learning_rate!r}; it must be a number, or an object with "
            "__call__(step) and to_json(), such as WarmupCosine(...)"
        )
    return learning_rate if isinstance(learning_rate, Schedule) else Constant(learning_rate)


def rate_at(schedule: Schedule, step: int) -> float:
    """The learning rate that a schedule gives for a step.

    Raises:
        SessionError: it is no finite number of at least 0.
    """
    given: object = schedule(step)
    # A user's schedule may compute with numpy or torch.
    found = real(given.item() if getattr(given, "ndim", None) == 0 else given)  # type: ignore[attr-defined]
    if found is None or not 0 <= found < math.inf:
        raise SessionError(
            f"learning_rate: the schedule {type(schedule).__name__} gives {given!r} for step "
            f"{step}; it must be a finite number, not negative"
        )
    return found


def from_json(value: object) -> Schedule:
    """Return the schedule that ``to_json`` described.

    Raises:
        SessionError: the kind is unknown, a parameter is missing, unknown or invalid.
    """
    if not isinstance(value, Mapping):
        raise SessionError(f"a schedule is a JSON object with 'kind', not {value!r}")
    kind = value.get("kind")
    schedule = SCHEDULES.get(kind) if isinstance(kind, str) else None
    if schedule is None:
        raise SessionError(f"unknown schedule {kind!r}; known are {', '.join(SCHEDULES)}")
    parameters = {name: item for name, item in value.items() if name != "kind"}
    expected = {field.name for field in fields(schedule)}
    if parameters.keys() != expected:
        raise SessionError(
            f"schedule {kind!r} has the parameters {sorted(expected)}, "
            f"not {sorted(map(str, parameters))}"
        )
    return schedule(**parameters)


def _step(step: SupportsIndex) -> int:
    try:
        number = operator.index(step)
    except TypeError as error:
        raise SessionError(f"a step is an int, not {step!r}") from error
    if number < 0:
        raise SessionError(f"a step is not negative: {number}")
    return number
