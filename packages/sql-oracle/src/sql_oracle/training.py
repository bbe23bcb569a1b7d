"""The PyTorch side of a check: autograd, ``torch.optim`` and ``clip_grad_norm_``."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sql_oracle.arguments import check_loss, check_takes
from sql_oracle.errors import OracleError, StateMismatch
from sql_oracle.precision import Precision
from sql_oracle.protocols import Array, Batch

#: Loss of one batch: a scalar tensor.
LossFunction = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
#: Weight decay of one parameter.
DecayRule = Callable[[str, Tensor], float]
#: Learning rate of update k, k = 0 for the first.
Schedule = Callable[[int], float]


def keyword_loss(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Call the module with the batch's arrays by name; it returns the loss.

    Raises:
        BatchError: it does not take arrays of these names.
    """
    check_takes(module, batch)
    return module(**batch)


def constant(rate: float) -> Schedule:
    """The same learning rate for every update."""
    return lambda step: rate


def warmup_cosine(peak: float, floor: float, warmup: int, total: int) -> Schedule:
    """Linear warm-up, then a half cosine from ``peak`` to ``floor``, then ``floor``.

    Update k of the warm-up has ``peak * (k + 1) / (warmup + 1)``. Source of the cosine:
    Loshchilov and Hutter, "SGDR" (2017), one period.
    """

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / (warmup + 1)
        if step > total:
            return floor
        progress = (step - warmup) / (total - warmup)
        return floor + 0.5 * (1.0 + math.cos(math.pi * progress)) * (peak - floor)

    return rate


def decay_matrices(rate: float) -> DecayRule:
    """Decay of ``rate`` on tensors of two or more dims, none on norms and biases."""
    return lambda name, parameter: rate if parameter.ndim >= 2 else 0.0


def decay_all(rate: float) -> DecayRule:
    """The same decay for every parameter."""
    return lambda name, parameter: rate


class OptimizerOptions(Protocol):
    """Builds the PyTorch optimizer and says where it keeps what the session calls its slots."""

    @property
    def slots(self) -> Mapping[str, str]:
        """Session slot name to key of ``torch.optim``'s state, for example ``m: exp_avg``."""

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """A fresh optimizer over all parameters; its learning rate is set at each update."""


@dataclass(frozen=True, slots=True)
class AdamWOptions:
    """``torch.optim.AdamW`` with one parameter group for each rate of decay.

    Attributes:
        betas: decay of the two moments.
        eps: added to the root of the second moment.
        weight_decay: rule giving each parameter's decoupled decay, or one rate for all.
        fused: use PyTorch's fused kernel, whose rounding differs.
        slots: see :class:`OptimizerOptions`.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: DecayRule | float = 0.01
    fused: bool = False
    slots: Mapping[str, str] = field(default_factory=lambda: {"m": "exp_avg", "v": "exp_avg_sq"})

    def build(self, module: nn.Module) -> torch.optim.AdamW:
        rule = self.weight_decay
        if not callable(rule):
            rule = decay_all(rule)
        groups: dict[float, list[Tensor]] = {}
        for name, parameter in module.named_parameters():
            groups.setdefault(rule(name, parameter), []).append(parameter)
        return torch.optim.AdamW(
            [{"params": members, "weight_decay": rate} for rate, members in groups.items()],
            betas=self.betas,
            eps=self.eps,
            fused=self.fused,
        )


class TorchTrainer:
    """Trains a module update by update and shows what happened in between.

    Args:
        module: already on its device, in the precision's dtype.
        loss: loss of one batch.
        optimizer: see :class:`OptimizerOptions`.
        clip_norm: global norm that gradients are clipped to; None never clips.
        learning_rate: schedule.
        precision: what the arithmetic runs in.
        before_step: called with the update's number before its forward pass, for example to give
            the module that update's dropout masks.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: LossFunction,
        optimizer: OptimizerOptions,
        clip_norm: float | None,
        learning_rate: Schedule,
        precision: Precision,
        before_step: Callable[[int], None] | None = None,
    ) -> None:
        self.module = module
        try:
            self.optimizer = optimizer.build(module)
        except (TypeError, ValueError) as error:
            raise OracleError(f"optimizer: torch refuses its options: {error}") from error
        self.clip_norm = clip_norm
        self.learning_rate = learning_rate
        self.precision = precision
        self.step_count = 0
        self._loss = loss
        self._slots = optimizer.slots
        self._before_step = before_step
        self._device = next(module.parameters()).device

    def backward(self, batch: Batch) -> float:
        """Loss of a batch at the current weights; leaves raw gradients in the parameters."""
        if self._before_step is not None:
            self._before_step(self.step_count)
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision.active(self._device):
            loss = self._loss(self.module, self._tensors(batch))
            check_loss(loss)
            loss.backward()
        return float(loss.detach())

    def gradients(self) -> dict[str, Array]:
        """Copies of the gradients now in the parameters, zero where autograd left none."""
        return {
            name: _copy(torch.zeros_like(p) if p.grad is None else p.grad)
            for name, p in self.module.named_parameters()
        }

    def update(self) -> float:
        """Clip, take the optimizer's step, and return the norm of the raw gradients."""
        norm = self.clip()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step_count)
        self.optimizer.step()
        self.step_count += 1
        return norm

    def clip(self) -> float:
        """Clip the gradients in place and return their norm before it."""
        limit = math.inf if self.clip_norm is None else self.clip_norm
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit))

    def weights(self) -> dict[str, Array]:
        """Copies of the parameters."""
        return {name: _copy(p) for name, p in self.module.named_parameters()}

    def slots(self) -> dict[str, dict[str, Array]]:
        """Copies of the optimizer's state: session slot name, then parameter name.

        Raises:
            StateMismatch: the optimizer keeps nothing under a slot's key.
        """
        kept = {key for state in self.optimizer.state.values() for key in state}
        for slot, key in self._slots.items():
            if kept and key not in kept:
                raise StateMismatch(
                    f"optimizer: torch keeps no {key!r} for the slot {slot!r}; it keeps "
                    f"{', '.join(sorted(kept))}"
                )
        return {
            slot: {
                name: _copy(self.optimizer.state[p][key])
                if key in self.optimizer.state[p]
                else np.zeros(tuple(p.shape))
                for name, p in self.module.named_parameters()
            }
            for slot, key in self._slots.items()
        }

    @torch.no_grad()
    def load_slots(self, slots: Mapping[str, Mapping[str, Array]], step_count: int) -> None:
        """Continue from a given optimizer state after ``step_count`` updates.

        Raises:
            StateMismatch: a slot that this optimizer needs is missing.
        """
        for slot in self._slots:
            if slot not in slots:
                raise StateMismatch(f"the session's state has no optimizer slot {slot!r}")
        for name, p in self.module.named_parameters():
            state = self.optimizer.state[p]
            state["step"] = torch.tensor(float(step_count))
            for slot, key in self._slots.items():
                state[key] = torch.as_tensor(slots[slot][name].copy()).to(p.device, p.dtype)
        self.step_count = step_count

    def _tensors(self, batch: Batch) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, values in batch.items():
            array = np.asarray(values)
            wide = torch.int64 if array.dtype.kind in "iub" else self.precision.dtype
            tensors[name] = torch.from_numpy(array.copy()).to(self._device, wide)
        return tensors


def _copy(tensor: Tensor) -> Array:
    return tensor.detach().to("cpu", copy=True).numpy()
