"""Train a session and a PyTorch module side by side and compare every number."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn

from sql_oracle.arguments import check_functions, check_run, check_sides, checked_rates
from sql_oracle.compare import Difference, difference
from sql_oracle.errors import BatchError, StateMismatch
from sql_oracle.floors import Floor
from sql_oracle.mapping import Mapping as TableMapping
from sql_oracle.mapping import parameter_shapes
from sql_oracle.precision import precision_policy
from sql_oracle.protocols import Array, Batch, Session, StepReport
from sql_oracle.tolerances import Tolerance, tolerance_for
from sql_oracle.training import (
    LossFunction,
    OptimizerOptions,
    Schedule,
    TorchTrainer,
    constant,
    keyword_loss,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number or array of one step on both sides.

    Attributes:
        step: the session's number of the update, 0 for its first.
        quantity: "learning_rate", "loss", "gradient", "grad_norm", "weight" or "moment".
        tensor: table name, with ``.slot`` for a moment; empty for scalars.
        difference: how far the session is from PyTorch.
        limit: largest allowed errors.
    """

    step: int
    quantity: str
    tensor: str
    difference: Difference
    limit: Floor

    @property
    def passed(self) -> bool:
        """Whether both errors are within their limits."""
        return self.difference.norm <= self.limit.norm and self.difference.entry <= self.limit.entry

    @property
    def excess(self) -> float:
        """The larger of the two errors in units of its limit."""
        norm = _ratio(self.difference.norm, self.limit.norm)
        return max(norm, _ratio(self.difference.entry, self.limit.entry))

    @property
    def name(self) -> str:
        """Quantity and tensor, as in "gradient of wte"."""
        return f"{self.quantity} of {self.tensor}" if self.tensor else self.quantity

    def describe(self) -> str:
        """One sentence with the place and both values."""
        found = self.difference
        where = f" at index {found.index}" if found.index else ""
        return (
            f"step {self.step}: {self.name} differs{where}: session {found.actual!r}, "
            f"PyTorch {found.expected!r} (norm error {found.norm:.3g}, tolerance "
            f"{self.limit.norm:.3g}; entry error {found.entry:.3g}, tolerance "
            f"{self.limit.entry:.3g})"
        )


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Outcome of a check.

    Attributes:
        precision: policy that both sides ran under.
        device: where PyTorch ran.
        parameters: number of weights.
        tolerance: the limits and what justifies them.
        comparisons: in the order they were made.
        steps: updates compared.
        planned_steps: updates asked for; more than ``steps`` when a breach stopped the check.
    """

    precision: str
    device: str
    parameters: int
    tolerance: Tolerance
    comparisons: tuple[Comparison, ...]
    steps: int
    planned_steps: int

    @property
    def breaches(self) -> tuple[Comparison, ...]:
        """Comparisons beyond their limits, in order."""
        return tuple(c for c in self.comparisons if not c.passed)

    @property
    def first_breach(self) -> Comparison | None:
        """The earliest comparison beyond its limits, or None."""
        return next(iter(self.breaches), None)

    @property
    def passed(self) -> bool:
        """Whether every planned step was compared and is within its limits."""
        return self.steps == self.planned_steps and not self.breaches


def check(
    session: Session,
    module: nn.Module,
    mapping: TableMapping,
    batches: Iterable[Batch],
    *,
    optimizer: OptimizerOptions,
    learning_rate: Schedule | float,
    precision: str,
    clip_norm: float | None = None,
    loss: LossFunction = keyword_loss,
    steps: int | None = None,
    device: str = "cpu",
    tolerance: Tolerance | None = None,
    before_step: Callable[[int], None] | None = None,
    follow: bool = False,
    keep_going: bool = False,
    trainer: type[TorchTrainer] = TorchTrainer,
    on_step: Callable[[tuple[Comparison, ...]], None] | None = None,
) -> CheckResult:
    """Train both sides from the session's state and compare every step.

    Compared at each step: learning rate, loss, every raw gradient (before clipping), the gradients'
    global norm, every optimizer slot, and every weight. A step with a breach is compared to its
    end; the check stops after it.

    Args:
        session: the side under test; it is trained by ``steps`` updates.
        module: the judge. Its parameters are overwritten with the session's weights, and with its
            optimizer slots when the session has already made updates.
        mapping: which table holds which parameters.
        batches: arrays by name; the session and ``loss`` get the same ones.
        optimizer: builds the ``torch.optim`` optimizer.
        learning_rate: schedule over update numbers, or one rate.
        precision: "float64", "float32", "tf32" or "bfloat16".
        clip_norm: global norm for clipping; None never clips.
        loss: scalar loss of ``(module, batch)``; calls ``module(**batch)`` by default.
        steps: number of updates; all batches when None.
        device: where PyTorch runs.
        tolerance: limits; by default those for this precision, size and number of steps.
        before_step: called with the update's number before each PyTorch forward pass.
        follow: after each step PyTorch continues from the session's state, so that every update is
            judged by itself and rounding does not add up.
        keep_going: do not stop at a breach.
        trainer: class of the PyTorch side.
        on_step: called with each step's comparisons.

    Raises:
        MappingError: tables or parameters left out, unknown, or of other shapes.
        StateMismatch: the session's gradients or optimizer slots are not those of the mapping.
        BatchError: no batch, or fewer than ``steps``; or what is no batch or no loss.
        OracleError: another argument is of the wrong kind or out of range.
    """
    check_sides(session, module, mapping, optimizer)
    check_run(batches, steps, clip_norm, device, tolerance)
    check_functions(trainer=trainer, before_step=before_step, on_step=on_step)
    if loss is None or not callable(loss):
        raise BatchError(f"loss is {loss!r}; it must be a function of the module and a batch")
    policy = precision_policy(precision)
    planned = list(batches) if steps is None else list(itertools.islice(batches, steps))
    if not planned or (steps is not None and len(planned) < steps):
        raise BatchError(f"{len(planned)} batches were given, {steps or 'at least one'} are needed")
    module = module.to(device, policy.dtype)
    state = session.state()
    weights, slots = split_state(state)
    mapping.validate({name: array.shape for name, array in weights.items()}, module)
    mapping.load(weights, module)
    torch_side = trainer(
        module,
        loss=loss,
        optimizer=optimizer,
        clip_norm=clip_norm,
        learning_rate=learning_rate if callable(learning_rate) else constant(learning_rate),
        precision=policy,
        before_step=before_step,
    )
    if session.step_count:
        _load_slots(torch_side, mapping, slots, session.step_count)
    rates = checked_rates(torch_side.learning_rate, torch_side.step_count, len(planned))
    parameters = sum(int(np.prod(shape)) for shape in parameter_shapes(module).values())
    if tolerance is None:
        horizon = 1 if follow else len(planned)
        tolerance = tolerance_for(
            precision,
            parameters=parameters,
            steps=horizon,
            device=device,
            learning_rate=max(rates),
        )
    comparisons: list[Comparison] = []
    done = 0
    for batch in planned:
        # The epsilon of the session's learning rate is that of the type it is stored in.
        rounding = 4.0 * float(np.finfo(policy.numpy_dtype).eps)
        limits = {**tolerance.limits, "learning_rate": Floor(rounding, rounding)}
        found = tuple(
            Comparison(*entry, limits[entry[1]])
            for entry in _compare_step(session, torch_side, mapping, batch)
        )
        comparisons.extend(found)
        done += 1
        if on_step is not None:
            on_step(found)
        if not keep_going and not all(comparison.passed for comparison in found):
            break
        if follow and done < len(planned):
            weights, slots = split_state(session.state())
            mapping.load(weights, module)
            _load_slots(torch_side, mapping, slots, session.step_count)
    return CheckResult(
        precision=policy.name,
        device=device,
        parameters=parameters,
        tolerance=tolerance,
        comparisons=tuple(comparisons),
        steps=done,
        planned_steps=len(planned),
    )


def split_state(
    state: Mapping[str, Array],
) -> tuple[dict[str, Array], dict[str, dict[str, Array]]]:
    """Weights by table, and optimizer slots by slot name and table, of a session's state."""
    weights: dict[str, Array] = {}
    slots: dict[str, dict[str, Array]] = {}
    for name, array in state.items():
        table, dot, slot = name.rpartition(".")
        if dot:
            slots.setdefault(slot, {})[table] = array
        else:
            weights[name] = array
    return weights, slots


def _load_slots(
    trainer: TorchTrainer,
    mapping: TableMapping,
    slots: Mapping[str, Mapping[str, Array]],
    step_count: int,
) -> None:
    for slot, tables in slots.items():
        _same_names(f"optimizer slot {slot!r}", tables, mapping)
    loaded = {slot: mapping.to_parameters(tables, trainer.module) for slot, tables in slots.items()}
    trainer.load_slots(loaded, step_count)


def _compare_step(
    session: Session, trainer: TorchTrainer, mapping: TableMapping, batch: Batch
) -> Iterator[tuple[int, str, str, Difference]]:
    """Make one update on both sides; yields step, quantity, tensor and difference."""
    step = session.step_count
    session_gradients = session.gradients(batch)
    _same_names("raw gradients", session_gradients, mapping)
    report: StepReport = session.step(batch)
    rate = trainer.learning_rate(trainer.step_count)
    loss = trainer.backward(batch)
    gradients = mapping.to_tables(trainer.gradients())
    norm = trainer.update()

    yield step, "learning_rate", "", difference(report.learning_rate, rate)
    yield step, "loss", "", difference(report.loss, loss)
    for table in mapping:
        found = difference(session_gradients[table], gradients[table])
        yield step, "gradient", table, found
    yield step, "grad_norm", "", difference(report.grad_norm, norm)
    # Moments before weights: the update follows from them, so the first breach is the cause.
    weights, slots = split_state(session.state())
    for slot, arrays in trainer.slots().items():
        if slot not in slots:
            raise StateMismatch(f"the session's state has no optimizer slot {slot!r}")
        _same_names(f"optimizer slot {slot!r}", slots[slot], mapping)
        for table, expected in mapping.to_tables(arrays).items():
            yield step, "moment", f"{table}.{slot}", difference(slots[slot][table], expected)
    for table, expected in mapping.to_tables(trainer.weights()).items():
        yield step, "weight", table, difference(weights[table], expected)


def _same_names(what: str, arrays: Mapping[str, Array], mapping: TableMapping) -> None:
    missing = sorted(set(mapping) - set(arrays))
    extra = sorted(set(arrays) - set(mapping))
    if missing or extra:
        raise StateMismatch(
            f"the session's {what} do not fit the mapping: missing {missing or 'none'}, "
            f"unexpected {extra or 'none'}"
        )


def _ratio(error: float, limit: float) -> float:
    if limit == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    return error / limit if np.isfinite(limit) else 0.0
