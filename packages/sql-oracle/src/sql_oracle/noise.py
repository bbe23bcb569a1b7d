"""The noise floor of a precision: PyTorch against itself in another order or precision.

Two correct programs differ by rounding. How much is measured, not guessed: the reference GPT is
trained twice from the same weights on the same batches with the same dropout masks, once as a check
runs it and once

* ``reordered``: the same precision, with every sum formed in another order and the fused operations
  composed of elementary ones (see :mod:`sql_oracle.reorder`); and
* ``widened``: in the next wider precision (float32 against float64; TF32 and bfloat16 against
  float32), which shows the whole rounding error of one side.

The floor of a quantity is the larger of the two, over all tensors and steps, and at least the
resolution of the type.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from sql_oracle.batches import synthetic_batches
from sql_oracle.compare import Difference, difference
from sql_oracle.floors import QUANTITIES, Floor, NoiseFloor
from sql_oracle.masks import PhiloxMasks, RememberedMasks
from sql_oracle.precision import Precision, PrecisionName, precision_policy
from sql_oracle.protocols import Array, Batch
from sql_oracle.reference import GPT, GPTConfig
from sql_oracle.reorder import Permutation, ReorderedMasks, modes
from sql_oracle.training import (
    AdamWOptions,
    TorchTrainer,
    decay_matrices,
    keyword_loss,
    warmup_cosine,
)

_WIDER: dict[str, PrecisionName] = {
    "float32": "float64",
    "tf32": "float32",
    "bfloat16": "float32",
}


class _ReorderedTrainer(TorchTrainer):
    """Trains a model with permuted channels, taking a batch's sequences one by one."""

    permutation: Permutation

    def backward(self, batch: Batch) -> float:
        module = self.module
        assert isinstance(module, GPT)
        size = len(batch["tokens"])
        if self._before_step is not None:
            self._before_step(self.step_count)
        whole = RememberedMasks(module.transformer["drop"].masks)
        channels = self.permutation.orders["c"]
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for row in np.random.default_rng(self.step_count).permutation(size):
            module.use_masks(ReorderedMasks(whole, int(row), size, channels))
            part = {
                name: self.permutation.tokens(values[row : row + 1])
                for name, values in batch.items()
            }
            with self.precision.active(self._device):
                loss = self._loss(module, self._tensors(part)) / size
                loss.backward()
            total += float(loss.detach())
        return total


def measure_noise_floor(
    config: GPTConfig,
    precision: str,
    *,
    batch_size: int,
    steps: int = 5,
    dropout: float = 0.2,
    seed: int = 1337,
    device: str = "cpu",
) -> NoiseFloor:
    """Measure a precision's noise with the recipe's optimizer and schedule.

    AdamW (0.9, 0.99), decay 0.1 on matrices, clipping at 1.0, warm-up over 100 updates to 1e-3.

    Raises:
        OracleError: unknown precision.
    """
    policy = precision_policy(precision)
    emulate = policy.name == "tf32" and torch.device(device).type == "cpu"
    recipe = _Recipe(config, batch_size, steps, dropout, seed, device)
    plain = recipe.run(policy, tf32=emulate, reordered=False)
    others = [recipe.run(policy, tf32=emulate, reordered=True)]
    if policy.name in _WIDER:
        wider = precision_policy(_WIDER[policy.name])
        others.append(recipe.run(wider, tf32=False, reordered=False))
    # Two runs may agree to the last bit by chance; the type itself resolves no more than this.
    resolution = float(np.finfo(policy.numpy_dtype).eps)
    smallest = Floor(resolution, resolution)
    worst: dict[str, Floor] = dict.fromkeys(QUANTITIES, smallest)
    for other in others:
        for ours, theirs in zip(plain, other, strict=True):
            for quantity, found in _differences(ours, theirs):
                floor = worst[quantity]
                worst[quantity] = Floor(max(floor.norm, found.norm), max(floor.entry, found.entry))
    return NoiseFloor(
        precision=policy.name,
        config=config,
        batch_size=batch_size,
        steps=steps,
        device=f"{device} (emulated)" if emulate else device,
        floors=worst,
    )


def largest(measured: Iterable[NoiseFloor]) -> NoiseFloor:
    """The largest floor of each quantity among measurements that differ in their seeds."""
    first, *others = measured
    floors = dict(first.floors)
    for other in others:
        for quantity, floor in other.floors.items():
            known = floors[quantity]
            floors[quantity] = Floor(max(known.norm, floor.norm), max(known.entry, floor.entry))
    return replace(first, floors=floors)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    loss: float
    grad_norm: float
    arrays: dict[str, dict[str, Array]]


@dataclass(frozen=True, slots=True)
class _Recipe:
    """One training run that can be repeated in another order or precision."""

    config: GPTConfig
    batch_size: int
    steps: int
    dropout: float
    seed: int
    device: str

    def run(self, policy: Precision, *, tf32: bool, reordered: bool) -> list[_Snapshot]:
        module = GPT(self.config)
        module.initialise(self.seed)
        permutation = Permutation.random(self.config, self.seed)
        if reordered:
            weights = {name: p.detach().numpy() for name, p in module.named_parameters()}
            with torch.no_grad():
                for name, array in permutation.arrays(weights).items():
                    module.get_parameter(name).copy_(torch.from_numpy(array))
        module = module.to(self.device, policy.dtype)
        trainer = (_ReorderedTrainer if reordered else TorchTrainer)(
            module,
            loss=keyword_loss,
            optimizer=AdamWOptions((0.9, 0.99), 1e-8, decay_matrices(0.1), fused=reordered),
            clip_norm=1.0,
            learning_rate=warmup_cosine(1e-3, 1e-4, 100, 5000),
            precision=policy,
            before_step=lambda step: module.use_masks(PhiloxMasks(self.dropout, self.seed, step)),
        )
        if isinstance(trainer, _ReorderedTrainer):
            trainer.permutation = permutation
        restore = permutation.inverse.arrays if reordered else dict
        snapshots = []
        with modes(composed=reordered, tf32=tf32):
            for batch in synthetic_batches(self.config, self.batch_size, self.steps, self.seed):
                loss = trainer.backward(batch)
                arrays = {"gradient": restore(trainer.gradients())}
                norm = trainer.update()
                arrays["weight"] = restore(trainer.weights())
                arrays["moment"] = {
                    f"{slot}.{name}": array
                    for slot, slot_arrays in trainer.slots().items()
                    for name, array in restore(slot_arrays).items()
                }
                snapshots.append(_Snapshot(loss, norm, arrays))
        return snapshots


def _differences(ours: _Snapshot, theirs: _Snapshot) -> Iterator[tuple[str, Difference]]:
    yield "loss", difference(ours.loss, theirs.loss)
    yield "grad_norm", difference(ours.grad_norm, theirs.grad_norm)
    for quantity, arrays in ours.arrays.items():
        for name, array in arrays.items():
            yield quantity, difference(array, theirs.arrays[quantity][name])
