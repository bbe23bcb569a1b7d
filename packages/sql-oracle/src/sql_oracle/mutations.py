"""Faults on the PyTorch side, each of which a check must catch.

A judge that accepts everything also accepts what is right. Every :class:`Mutation` changes one
thing of the PyTorch side; checking a *correct* session against it must fail and name what differs.
The same list runs against the SQL session and against any other. Faults on the SQL side are made by
the caller, by changing the SQL text or the session's options; :attr:`Mutation.first` says what a
check must name in either case.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sql_oracle.check import CheckResult
from sql_oracle.errors import OracleError
from sql_oracle.masks import MaskSource
from sql_oracle.reference import GPT, mlp_output_site
from sql_oracle.training import AdamWOptions, TorchTrainer


@dataclass(frozen=True, slots=True)
class Judge:
    """The PyTorch side's parts that a mutation may replace.

    Attributes:
        module: the reference GPT.
        optimizer: options of ``torch.optim.AdamW``.
        masks: gives the mask source of each step.
        trainer: class that clips and updates.
    """

    module: GPT
    optimizer: AdamWOptions
    masks: Callable[[int], MaskSource]
    trainer: type[TorchTrainer] = TorchTrainer

    def options(self) -> dict[str, Any]:
        """Keyword arguments for :func:`sql_oracle.check`."""
        return {
            "optimizer": self.optimizer,
            "before_step": lambda step: self.module.use_masks(self.masks(step)),
            "trainer": self.trainer,
        }


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault.

    Attributes:
        name: short name.
        changes: what is changed, in words.
        apply: makes a mutated judge from a correct one; may change its module in place.
        first: quantities and tensors (as in :attr:`sql_oracle.Comparison.name`), one of which must
            be the first breach.
        among: names that must all be among the breaches of the failing step.
    """

    name: str
    changes: str
    apply: Callable[[Judge], Judge]
    first: frozenset[str]
    among: frozenset[str] = frozenset()

    def verify(self, result: CheckResult) -> None:
        """Raise unless the check caught this mutation and named the right thing.

        Raises:
            OracleError: it passed, or named something else.
        """
        breach = result.first_breach
        if breach is None:
            raise OracleError(f"mutation {self.name} was not caught")
        found = {comparison.name for comparison in result.breaches}
        if breach.name not in self.first or not self.among <= found:
            raise OracleError(
                f"mutation {self.name} was caught as {breach.describe()}; expected first one of "
                f"{sorted(self.first)}, and among the breaches {sorted(self.among)}"
            )


@dataclass(frozen=True, slots=True)
class _MovedSite:
    """Masks in which one site draws the bits of another."""

    source: MaskSource
    site: int
    instead: int

    def __call__(
        self, site: int, shape: Sequence[int], dtype: npt.DTypeLike
    ) -> npt.NDArray[np.floating] | None:
        return self.source(self.instead if site == self.site else site, shape, dtype)


class _DecayBeforeClip(TorchTrainer):
    """Adds the decay to the gradients before they are clipped, and decays nothing after."""

    def clip(self) -> float:
        with torch.no_grad():
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.add_(parameter, alpha=group["weight_decay"])
                group["weight_decay"] = 0.0
        return super().clip()


def _scale(judge: Judge) -> Judge:
    judge.module.transformer["h"][0].attn.scale *= 1.01
    return judge


def _mask_site(judge: Judge) -> Judge:
    layers = judge.module.config.layers
    site, beyond = mlp_output_site(0), mlp_output_site(layers)
    return replace(judge, masks=lambda step: _MovedSite(judge.masks(step), site, beyond))


def _beta2(judge: Judge) -> Judge:
    beta1, beta2 = judge.optimizer.betas
    return replace(judge, optimizer=replace(judge.optimizer, betas=(beta1, beta2 + 1e-3)))


def _decay_on_norm(judge: Judge) -> Judge:
    rule = judge.optimizer.weight_decay

    def mutated(name: str, parameter: Tensor) -> float:
        if name == "transformer.ln_f.weight":
            return 0.1
        return rule(name, parameter) if callable(rule) else rule

    return replace(judge, optimizer=replace(judge.optimizer, weight_decay=mutated))


def _decay_before_clip(judge: Judge) -> Judge:
    return replace(judge, trainer=_DecayBeforeClip)


def _gradient_entry(judge: Judge) -> Judge:
    def mutated(gradient: Tensor) -> Tensor:
        changed = gradient.clone(memory_format=torch.contiguous_format)
        # An entry of typical size: neither the largest nor one that is nearly zero.
        rank = int(0.7 * gradient.numel())
        position = int(gradient.abs().flatten().argsort()[rank])
        changed.view(-1)[position] *= 1.0 + 1e-3
        return changed

    judge.module.get_parameter("transformer.h.0.mlp.c_fc.weight").register_hook(mutated)
    return judge


class _DetachedHead(nn.Module):
    """The output layer with the embedding's values and without its gradient."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._embedding = (embedding,)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self._embedding[0].weight.detach())


def _untied(judge: Judge) -> Judge:
    judge.module.lm_head = _DetachedHead(judge.module.transformer["wte"])
    return judge


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "scale",
        "the first layer's attention scores are scaled by 1.01",
        _scale,
        frozenset({"loss", "gradient of attn_qkv", "gradient of wte"}),
        frozenset({"gradient of attn_qkv"}),
    ),
    Mutation(
        "mask site",
        "the first layer's MLP dropout draws the bits of a site that no layer has",
        _mask_site,
        frozenset({"loss"}),
        frozenset({"gradient of mlp_out"}),
    ),
    Mutation(
        "beta2",
        "the decay of the second moment is off by 0.001",
        _beta2,
        frozenset({"moment of wte.v"}),
    ),
    Mutation(
        "decay on a norm weight",
        "the final layer norm's weight is decayed",
        _decay_on_norm,
        frozenset({"weight of ln_final"}),
    ),
    Mutation(
        "decay before clip",
        "decay is added to the gradients before clipping instead of decoupled after it",
        _decay_before_clip,
        frozenset({"grad_norm"}),
        frozenset({"weight of wte", "moment of wte.m"}),
    ),
    Mutation(
        "gradient entry",
        "one entry of one MLP gradient is off by 0.001 of itself",
        _gradient_entry,
        frozenset({"gradient of mlp_in"}),
    ),
    Mutation(
        "untied embedding",
        "the output layer no longer contributes to the embedding's gradient",
        _untied,
        frozenset({"gradient of wte"}),
    ),
)


def mutation(name: str) -> Mutation:
    """The mutation of that name.

    Raises:
        OracleError: no such mutation.
    """
    by_name: Mapping[str, Mutation] = {entry.name: entry for entry in MUTATIONS}
    if name not in by_name:
        raise OracleError(f"unknown mutation {name!r}; there are {', '.join(by_name)}")
    return by_name[name]
