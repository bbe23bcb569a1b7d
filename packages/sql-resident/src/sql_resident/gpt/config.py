"""Sizes of the model and the shapes of its tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final

from ..errors import SessionError

__all__ = ["TABLE_DIMS", "GPTConfig", "dropout_sites"]

#: Dims of every weight table, in the memory order of the matching nanoGPT parameter.
TABLE_DIMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "wte": ("v", "c"),
        "wpe": ("t", "c"),
        "ln_attn": ("layer", "c"),
        "attn_qkv": ("layer", "part", "h", "d", "c"),
        "attn_out": ("layer", "c", "h", "d"),
        "ln_mlp": ("layer", "c"),
        "mlp_in": ("layer", "f", "c"),
        "mlp_out": ("layer", "c", "f"),
        "ln_final": ("c",),
    }
)


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes of the model; the defaults are nanoGPT's Shakespeare character model.

    Parameters
    ----------
    layers, heads, width, context:
        Number of blocks, heads in a block, channels of the residual stream, and positions.
    vocabulary:
        Number of distinct tokens.
    dropout:
        Probability in ``[0, 1)`` that a value is dropped, at every dropout site.

    Raises
    ------
    SessionError
        If a size is not a positive whole number, ``heads`` does not divide ``width``, or
        ``dropout`` is outside ``[0, 1)``.
    """

    layers: int = 6
    heads: int = 6
    width: int = 384
    context: int = 256
    vocabulary: int = 65
    dropout: float = 0.2

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "context", "vocabulary"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise SessionError(f"{name} must be a whole number of at least 1, not {size!r}")
        if self.width % self.heads:
            raise SessionError(
                f"width {self.width} cannot be split evenly over {self.heads} heads; "
                f"choose a width that is a multiple of the heads"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise SessionError(f"dropout must be at least 0 and below 1, not {self.dropout!r}")

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.width // self.heads

    @property
    def dim_sizes(self) -> dict[str, int]:
        """Size of every dim of the weight tables."""
        return {
            "layer": self.layers,
            "part": 3,
            "h": self.heads,
            "d": self.head_width,
            "c": self.width,
            "f": 4 * self.width,
            "t": self.context,
            "v": self.vocabulary,
        }

    @property
    def table_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight table, dims in the order of :data:`TABLE_DIMS`."""
        sizes = self.dim_sizes
        return {name: tuple(sizes[dim] for dim in dims) for name, dims in TABLE_DIMS.items()}

    @property
    def parameter_count(self) -> int:
        """Number of trained values; the tied output weight counts once."""
        return sum(prod(shape) for shape in self.table_shapes.values())


def dropout_sites(layer: int) -> dict[str, int]:
    """Numbers of the dropout sites of block ``layer``; site 0 is the embedding's.

    Every site draws from a stream of its own, so masks are independent across sites.
    """
    return {
        "attention_site": 3 * layer + 1,
        "projection_site": 3 * layer + 2,
        "mlp_site": 3 * layer + 3,
    }
