"""Time training steps of several contenders side by side in one process.

Contenders take turns in blocks of a few steps, in another order each round, so that a change of
clock rate or load meets all of them. Only ``step`` is timed, from before its call until the loss is
a Python number and the device is idle.
"""

import gc
import itertools
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sql_oracle.batches import synthetic_batches
from sql_oracle.errors import OracleError
from sql_oracle.flops import FORMULA, Peak, device_peak, training_flops
from sql_oracle.native import Contender
from sql_oracle.protocols import Batch, Session
from sql_oracle.reference import GPTConfig
from sql_oracle.report import environment, text_table

POLICY = (
    "timed: forward, backward, clipping, update, and reading the loss, until the device is idle. "
    "Not timed: making batches, evaluation, checks, compilation, the first step of each block. "
    "Uploads: outside the timer; 'upload' marks contenders whose step checks and uploads its batch."
)


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """How to measure.

    Attributes:
        config: sizes of the model.
        batch_size: sequences in a batch.
        precision: name of the policy.
        device: "cpu" or "cuda".
        rounds: turns of every contender.
        block: timed steps in a turn; one more before them is not timed.
        seed: of the batches.
    """

    config: GPTConfig
    batch_size: int
    precision: str
    device: str
    rounds: int = 10
    block: int = 5
    seed: int = 1337

    def __post_init__(self) -> None:
        for name in ("batch_size", "rounds", "block"):
            if getattr(self, name) < 1:
                raise OracleError(f"{name} must be at least 1, it is {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Timing:
    """Measurements of one contender.

    Attributes:
        name: of the contender.
        seconds: of every timed step, by round.
        first_step_seconds: from nothing to the end of the first step, compilation included.
        peak_bytes: most device memory that a step holds beyond what was there before; None on a
            CPU, where a process's memory cannot be told apart by contender.
        last_loss: of the last step.
        upload_timed: whether its step includes the upload.
        counters: its own counters.
    """

    name: str
    seconds: tuple[tuple[float, ...], ...]
    first_step_seconds: float
    peak_bytes: int | None
    last_loss: float
    upload_timed: bool
    counters: dict[str, int]

    @property
    def median(self) -> float:
        """Median seconds of a step."""
        return float(np.median(self._all))

    def quantile(self, q: float) -> float:
        """Quantile of the seconds of a step."""
        return float(np.quantile(self._all, q))

    @property
    def _all(self) -> list[float]:
        return list(itertools.chain.from_iterable(self.seconds))

    def ratio(self, other: "Timing") -> tuple[float, float, float]:
        """Ratio of medians to another's, then the least and largest ratio of a round's medians."""
        by_round = [
            float(np.median(ours) / np.median(theirs))
            for ours, theirs in zip(self.seconds, other.seconds, strict=True)
        ]
        return self.median / other.median, min(by_round), max(by_round)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Outcome of a benchmark.

    Attributes:
        settings: how it was measured.
        timings: by contender, in the order they were given.
        skipped: contenders that could not be set up, with the reason.
        device_name: of the hardware.
        peak: the device's peak rate used for utilisation, if listed.
        process_peak_bytes: most memory the process held, on the CPU.
    """

    settings: BenchSettings
    timings: tuple[Timing, ...]
    skipped: dict[str, str]
    device_name: str
    peak: Peak | None
    process_peak_bytes: int

    def tokens_per_second(self, timing: Timing) -> float:
        """Tokens trained on in a second at the median."""
        return self.settings.batch_size * self.settings.config.context / timing.median

    def utilisation(self, timing: Timing) -> float | None:
        """Model FLOP utilisation: the formula's operations a second over the peak."""
        if self.peak is None:
            return None
        flops = training_flops(self.settings.config, self.settings.batch_size)
        return flops / timing.median / self.peak.flops


class SessionContender:
    """A training session as a contender.

    Args:
        name: of the contender.
        build: makes the session; its time counts toward the first step.
        staged: check and upload batches ahead of their step, as other contenders do. Sessions
            that cannot (they have no method ``stage``) do it in the step, and so do all if false.
    """

    def __init__(self, name: str, build: Callable[[], Session], staged: bool = True) -> None:
        self.name = name
        self._build = build
        self._staged = staged
        self._batch: Any = {}

    @property
    def session(self) -> Session:
        """The session, once it has been set up."""
        return self._session

    @property
    def upload_timed(self) -> bool:
        """Whether batches are checked and uploaded in the step."""
        return not (self._staged and hasattr(self._session, "stage"))

    def setup(self, batch: Batch) -> None:
        self._session: Any = self._build()
        self.stage(batch)
        self.step()

    def stage(self, batch: Batch) -> None:
        self._batch = batch if self.upload_timed else self._session.stage(batch)

    def step(self) -> float:
        return float(self._session.step(self._batch).loss)

    def counters(self) -> dict[str, int]:
        found: Any = getattr(self._session, "counters", None)
        names = ("compilations", "steps", "arrays_exported", "bytes_exported", "scalars_read")
        values = {name: getattr(found, name, None) for name in (*names, "bytes_uploaded")}
        return {name: int(value) for name, value in values.items() if value is not None}


def bench(
    contenders: Sequence[Contender],
    settings: BenchSettings,
    progress: Callable[[str], None] | None = None,
) -> BenchResult:
    """Set all contenders up, then time them in turns.

    A contender that cannot be set up for a reason of this package's own errors is skipped and
    listed with the reason; other exceptions propagate.

    Raises:
        OracleError: nothing to time.
    """
    say = progress or (lambda text: None)
    batches = _cycle(settings)
    ready: list[tuple[Contender, float, int | None]] = []
    skipped: dict[str, str] = {}
    for contender in contenders:
        say(f"setting up {contender.name}")
        try:
            ready.append((contender, *_set_up(contender, batches, settings)))
        except OracleError as error:
            skipped[contender.name] = str(error)
    if not ready:
        raise OracleError(f"no contender could be set up: {skipped or 'none was given'}")
    seconds: dict[str, list[tuple[float, ...]]] = {entry[0].name: [] for entry in ready}
    losses: dict[str, float] = {}
    order = [entry[0] for entry in ready]
    for turn in range(settings.rounds):
        say(f"round {turn + 1} of {settings.rounds}")
        for contender in order[turn % len(order) :] + order[: turn % len(order)]:
            block, losses[contender.name] = _block(contender, batches, settings)
            seconds[contender.name].append(block)
    name = torch.cuda.get_device_name() if settings.device.startswith("cuda") else "CPU"
    return BenchResult(
        settings=settings,
        timings=tuple(
            Timing(
                name=contender.name,
                seconds=tuple(seconds[contender.name]),
                first_step_seconds=first,
                peak_bytes=peak,
                last_loss=losses[contender.name],
                upload_timed=contender.upload_timed,
                counters=contender.counters(),
            )
            for contender, first, peak in ready
        ),
        skipped=skipped,
        device_name=name,
        peak=device_peak(name, settings.precision),
        process_peak_bytes=_process_peak(),
    )


def _set_up(
    contender: Contender, batches: Iterator[Batch], settings: BenchSettings
) -> tuple[float, int | None]:
    """Seconds until the end of the first step, and the peak memory of set-up and two steps."""
    on_cuda = settings.device.startswith("cuda")
    gc.collect()
    before = 0
    if on_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    contender.setup(next(batches))
    _wait(settings.device)
    first = time.perf_counter() - start
    for _ in range(2):
        contender.stage(next(batches))
        contender.step()
    _wait(settings.device)
    return first, torch.cuda.max_memory_allocated() - before if on_cuda else None


def _block(
    contender: Contender, batches: Iterator[Batch], settings: BenchSettings
) -> tuple[tuple[float, ...], float]:
    """Seconds of one block's timed steps, and the loss of the last."""
    seconds = []
    loss = float("nan")
    for position in range(settings.block + 1):
        contender.stage(next(batches))
        _wait(settings.device)
        start = time.perf_counter()
        loss = contender.step()
        _wait(settings.device)
        if position > 0:
            seconds.append(time.perf_counter() - start)
    return tuple(seconds), loss


def _cycle(settings: BenchSettings) -> Iterator[Batch]:
    made = list(synthetic_batches(settings.config, settings.batch_size, 8, settings.seed))
    return itertools.cycle(made)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _process_peak() -> int:
    # The kernel reports kibibytes on Linux and bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def bench_table(result: BenchResult, baseline: str | None = None) -> str:
    """The measurements as a table; ``baseline`` names the contender that ratios refer to.

    Raises:
        OracleError: no such contender.
    """
    reference = _baseline(result, baseline)
    header = ["contender", "upload", "median ms", "10%", "90%", "ratio", "of rounds", "tokens/s"]
    header += ["MFU", "peak MiB", "first step s"]
    rows = []
    for timing in result.timings:
        ratio, low, high = timing.ratio(reference)
        share = result.utilisation(timing)
        rows.append(
            [
                timing.name,
                "timed" if timing.upload_timed else "",
                f"{1e3 * timing.median:.3f}",
                f"{1e3 * timing.quantile(0.1):.3f}",
                f"{1e3 * timing.quantile(0.9):.3f}",
                f"{ratio:.3f}",
                f"{low:.3f}-{high:.3f}",
                f"{result.tokens_per_second(timing):,.0f}",
                "" if share is None else f"{100 * share:.1f}%",
                "" if timing.peak_bytes is None else f"{timing.peak_bytes / 2**20:,.0f}",
                f"{timing.first_step_seconds:.2f}",
            ]
        )
    settings = result.settings
    lines = [
        f"{settings.precision} on {result.device_name}: {settings.config.parameters:,} parameters, "
        f"batch {settings.batch_size} x {settings.config.context}; {settings.rounds} rounds of "
        f"{settings.block} steps; ratios to {reference.name}",
        POLICY,
        text_table(header, rows),
        _utilisation_note(result),
        f"peak memory of the process: {result.process_peak_bytes / 2**20:,.0f} MiB",
    ]
    for timing in result.timings:
        if timing.counters:
            counts = ", ".join(f"{name} {value:,}" for name, value in timing.counters.items())
            lines.append(f"counters of {timing.name}: {counts}")
    lines += [f"left out: {name} ({reason})" for name, reason in result.skipped.items()]
    return "\n".join(lines)


def _utilisation_note(result: BenchResult) -> str:
    if result.peak is None:
        return f"MFU: no peak rate is listed for {result.device_name} in this precision"
    return f"MFU: ({FORMULA}) / time / {result.peak.flops / 1e12:g} TFLOP/s ({result.peak.source})"


def _baseline(result: BenchResult, name: str | None) -> Timing:
    if name is None:
        return result.timings[0]
    for timing in result.timings:
        if timing.name == name:
            return timing
    known = ", ".join(timing.name for timing in result.timings)
    raise OracleError(f"no contender {name!r} was timed; there are {known}")


def bench_record(
    result: BenchResult,
    baseline: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A JSON-ready record with every timed step; ``settings`` say how it was asked for."""
    reference = _baseline(result, baseline)
    config = result.settings.config
    return {
        "kind": "bench",
        "policy": POLICY,
        "precision": result.settings.precision,
        "device": result.settings.device,
        "device_name": result.device_name,
        "layers": config.layers,
        "heads": config.heads,
        "width": config.width,
        "context": config.context,
        "vocabulary": config.vocabulary,
        "parameters": config.parameters,
        "batch_size": result.settings.batch_size,
        "rounds": result.settings.rounds,
        "block": result.settings.block,
        "baseline": reference.name,
        "mfu_formula": FORMULA,
        "peak_flops": None if result.peak is None else result.peak.flops,
        "peak_source": None if result.peak is None else result.peak.source,
        "process_peak_bytes": result.process_peak_bytes,
        "settings": dict(settings or {}),
        "environment": environment(),
        "skipped": result.skipped,
        "contenders": [
            {
                "name": timing.name,
                "median_s": timing.median,
                "p10_s": timing.quantile(0.1),
                "p90_s": timing.quantile(0.9),
                "ratio": timing.ratio(reference)[0],
                "ratio_of_rounds": list(timing.ratio(reference)[1:]),
                "tokens_per_s": result.tokens_per_second(timing),
                "mfu": result.utilisation(timing),
                "peak_bytes": timing.peak_bytes,
                "first_step_s": timing.first_step_seconds,
                "upload_timed": timing.upload_timed,
                "last_loss": timing.last_loss,
                "counters": timing.counters,
                "seconds": [list(block) for block in timing.seconds],
            }
            for timing in result.timings
        ],
    }
