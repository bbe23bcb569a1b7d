"""The same computation in another order, for measuring noise.

Three changes that mean nothing mathematically: the channels of the reference GPT (residual, head,
hidden and vocabulary) are permuted, so that every contraction sums in another order; the sequences
of a batch are taken one by one; and layer norm, softmax, GELU and cross-entropy are composed from
elementwise operations and sums, so that autograd forms their gradients differently from PyTorch's
own kernels. The optimizer uses its fused kernel.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sql_oracle.masks import MaskSource
from sql_oracle.protocols import Array
from sql_oracle.reference import GPTConfig

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Permutation:
    """New orders of a GPT's channels.

    Attributes:
        orders: for each kind of channel, the old position of every new one. Kinds: ``c`` residual,
            ``f`` hidden, ``v`` vocabulary, ``hd`` heads' outputs, ``qkv`` rows of the projection.
    """

    orders: Mapping[str, Index]

    @classmethod
    def random(cls, config: GPTConfig, seed: int) -> "Permutation":
        """Independent random orders; heads stay in place, channels move within them."""
        generator = np.random.default_rng(seed)
        depth = config.head_width
        inner = np.concatenate(
            [head * depth + generator.permutation(depth) for head in range(config.heads)]
        )
        # Queries and keys must share an order, and values must follow the output projection's.
        qkv = np.concatenate([part * config.width + inner for part in range(3)])
        return cls(
            {
                "c": generator.permutation(config.width),
                "f": generator.permutation(4 * config.width),
                "v": generator.permutation(config.vocabulary),
                "hd": inner,
                "qkv": qkv,
            }
        )

    @property
    def inverse(self) -> "Permutation":
        """The permutation that undoes this one."""
        return Permutation({kind: np.argsort(order) for kind, order in self.orders.items()})

    def arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Weights, gradients or moments named by parameter, with their channels permuted."""
        return {name: self._array(name, array) for name, array in arrays.items()}

    def tokens(self, tokens: Index) -> Index:
        """Token numbers in the new vocabulary."""
        return np.argsort(self.orders["v"])[tokens]

    def _array(self, name: str, array: Array) -> Array:
        for axis, kind in enumerate(_channels(name)):
            if kind in self.orders:
                array = np.take(array, self.orders[kind], axis=axis)
        return array


_CHANNELS: dict[str, tuple[str, ...]] = {
    "wte.weight": ("v", "c"),
    "wpe.weight": ("t", "c"),
    "attn.c_attn.weight": ("qkv", "c"),
    "attn.c_proj.weight": ("c", "hd"),
    "mlp.c_fc.weight": ("f", "c"),
    "mlp.c_proj.weight": ("c", "f"),
}


def _channels(name: str) -> tuple[str, ...]:
    for suffix, kinds in _CHANNELS.items():
        if name.endswith(suffix):
            return kinds
    return ("c",)


@dataclass(frozen=True, slots=True)
class ReorderedMasks:
    """The masks of a larger batch for one of its sequences and for permuted channels.

    Attributes:
        source: gives the whole batch's masks in the original order.
        row: the sequence.
        batch_size: sequences in the whole batch.
        channels: order of the residual channels, the last dim of all three-dim masks.
    """

    source: MaskSource
    row: int
    batch_size: int
    channels: Index

    def __call__(
        self, site: int, shape: Sequence[int], dtype: npt.DTypeLike
    ) -> npt.NDArray[np.floating] | None:
        whole = self.source(site, (self.batch_size, *shape[1:]), dtype)
        if whole is None:
            return None
        part = whole[self.row : self.row + 1]
        return np.ascontiguousarray(part[..., self.channels] if part.ndim == 3 else part)


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor, bias: None, eps: float) -> Tensor:
    centred = x - x.sum(-1, keepdim=True) / shape[-1]
    variance = (centred * centred).sum(-1, keepdim=True) / shape[-1]
    return weight * (centred / torch.sqrt(variance + eps))


def _softmax(x: Tensor, dim: int, **defaults: Any) -> Tensor:
    powers = torch.exp(x - x.detach().amax(dim, keepdim=True))
    return powers / powers.sum(dim, keepdim=True)


def _gelu(x: Tensor, approximate: str) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / 2.0**0.5))


def _cross_entropy(logits: Tensor, targets: Tensor, **defaults: Any) -> Tensor:
    peak = logits.detach().amax(1)
    total = torch.exp(logits - peak[:, None]).sum(1)
    chosen = logits.gather(1, targets[:, None])[:, 0]
    return (torch.log(total) + peak - chosen).sum() / targets.numel()


class ComposedOperations(TorchFunctionMode):
    """Within this context the model's four fused operations are composed of elementary ones."""

    _REPLACEMENTS: Mapping[Any, Callable[..., Tensor]] = {
        functional.layer_norm: _layer_norm,
        torch.softmax: _softmax,
        functional.gelu: _gelu,
        functional.cross_entropy: _cross_entropy,
    }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._REPLACEMENTS.get(func, func)(*args, **(kwargs or {}))


class _Tf32Product(torch.autograd.Function):
    """A matrix product whose operands, forward and backward, are rounded to TF32."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        a, b = round_to_tf32(a), round_to_tf32(b)
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        gradient = round_to_tf32(gradients[0])
        return gradient @ b.transpose(-1, -2), a.transpose(-1, -2) @ gradient


def round_to_tf32(x: Tensor) -> Tensor:
    """Round float32 values to TF32's ten bits of fraction, ties away from zero."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


class EmulatedTf32(TorchFunctionMode):
    """Within this context, linear layers and matrix products round their operands to TF32.

    For devices without TF32 arithmetic. Sums are formed in float32, as tensor cores do.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is functional.linear:
            x, weight = args[:2]
            flat = _Tf32Product.apply(x.flatten(0, -2), weight.t())
            return flat.view(*x.shape[:-1], weight.shape[0])
        if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
            return _Tf32Product.apply(*args)
        return func(*args, **(kwargs or {}))


@contextmanager
def modes(*, composed: bool, tf32: bool) -> Iterator[None]:
    """Enter the chosen modes."""
    if composed:
        with ComposedOperations(), modes(composed=False, tf32=tf32):
            yield
    elif tf32:
        with EmulatedTf32():
            yield
    else:
        yield
