"""Counter-based dropout: whether an entry is kept is a pure function of its coordinates.

``dropout_keep(p, seed, step, site, i1, ..., in)`` with 1 <= n <= 4 indices is::

    (k0, k1) = words 0 and 1 of philox4x32_7(counter=(site, step & M, step >> 32, n),
                                             key=(seed & M, seed >> 32)),  M = 2^32 - 1
    word     = philox4x32_7((in // 4, i(n-1), i(n-2), i(n-3)), (k0, k1))[in % 4]
    value    = 0 if word < floor(p * 2^32) else 1 / (1 - p)

An absent index is 0 in the counter. Four neighbours along the last index share one block. ``p`` is
in [0, 1), seed and step in [0, 2^63), site and indices in [0, 2^32).
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..errors import DomainError, ShapeError
from .mask_cpu import kept_mask
from .philox import ROUNDS, WORD, philox4x32, philox4x32_numpy

MAX_INDICES = 4
TWO_TO_32 = 4294967296.0

Number = int | float | torch.Tensor
Integer = int | torch.Tensor


def dropout_keep_numpy(
    p: npt.ArrayLike,
    seed: npt.ArrayLike,
    step: npt.ArrayLike,
    site: npt.ArrayLike,
    *indices: npt.ArrayLike,
) -> npt.NDArray[np.float64]:
    """The definition, entry by entry: 0 where dropped, ``1 / (1 - p)`` where kept.

    Args:
        p: probability to drop, in [0, 1).
        seed: non-negative integers below 2^63.
        step: non-negative integers below 2^63.
        site: integers in [0, 2^32).
        indices: one to four integer arrays in [0, 2^32); all arguments broadcast.

    Raises:
        ShapeError: for no index or more than four.
        DomainError: for a value outside its range.
    """
    _check_index_count(len(indices))
    rate = np.asarray(p, dtype=np.float64)
    if not np.all((rate >= 0) & (rate < 1)):
        raise DomainError(_out_of_range("p", "[0, 1)"))
    seed, step = (_words(name, v, 63) for name, v in (("seed", seed), ("step", step)))
    site, *coordinates = (
        _words(name, v, 32)
        for name, v in (("site", site), *((f"index {n}", i) for n, i in enumerate(indices, 1)))
    )
    low, high = np.uint64(WORD), np.uint64(32)
    key = philox4x32_numpy(
        (site, step & low, step >> high, len(indices)), (seed & low, seed >> high), ROUNDS
    )[:2]
    last, *rest = reversed(coordinates)
    rest += [np.uint64(0)] * (MAX_INDICES - len(indices))
    words = philox4x32_numpy((last >> np.uint64(2), *rest), key, ROUNDS)
    lane = last & np.uint64(3)
    word = np.select([lane == w for w in range(3)], words[:3], words[3])
    threshold = np.floor(rate * TWO_TO_32).astype(np.uint64)
    return np.where(word < threshold, 0.0, 1.0 / (1.0 - rate))


def dropout_keep(
    p: Number, seed: Integer, step: Integer, site: Integer, *indices: Integer
) -> torch.Tensor:
    """The same value elementwise in torch, float64 of the broadcast shape.

    Args:
        p: probability to drop: Python number or float64 tensor. A float32 tensor is a different
            number and may move the threshold.
        seed: Python integer or int64 tensor; likewise ``step``, ``site`` and the one to four
            ``indices``. Values of tensors are not checked (that would wait for the device).

    Raises:
        ShapeError: for no index or more than four.
        DomainError: for a Python number outside its range.
    """
    _check_index_count(len(indices))
    _check_scalars(p, seed, step, site)
    last, *rest = reversed([_int64(index) for index in indices])
    key = stream_key(seed, step, site, len(indices))
    absent = [0] * (MAX_INDICES - len(indices))
    words = philox4x32((last >> 2, *rest, *absent), key)
    lane = last & 3
    word = torch.where(
        lane < 2,
        torch.where(lane == 0, words[0], words[1]),
        torch.where(lane == 2, words[2], words[3]),
    )
    kept = (word >= _threshold(p)).to(torch.float64)
    scale = 1.0 / (1.0 - (p.to(torch.float64) if isinstance(p, torch.Tensor) else p))
    return kept * scale


def dropout_mask(
    p: Number,
    seed: Integer,
    step: Integer,
    site: Integer,
    shape: Sequence[int],
    device: torch.device | str = "cpu",
    causal: bool = False,
) -> torch.Tensor:
    """Which entries of a dense array are kept, its indices being 0 ... size-1 of every axis.

    Equals ``dropout_keep(...) != 0`` on the index grid, from one Philox block per four entries. On
    the CPU scalar tensors are read; elsewhere (and while a compiler traces) nothing is, so the call
    can be captured in a graph and replayed with new values in the same tensors.

    Args:
        p: probability to drop: Python number or zero-dimensional float64 tensor.
        seed: Python integer or zero-dimensional int64 tensor; likewise ``step`` and ``site``.
        shape: one to four axis sizes.
        device: where the mask is computed.
        causal: entries whose last index is above the one before it do not matter.

    Returns:
        bool tensor of ``shape``, True where kept; arbitrary where it does not matter.

    Raises:
        ShapeError: for no axis or more than four.
        DomainError: for a Python number outside its range.
    """
    shape = tuple(shape)
    _check_index_count(len(shape))
    device = torch.device(device)
    if device.type != "cpu" or torch.compiler.is_compiling():
        _check_scalars(p, seed, step, site)
        return _mask_in_torch(p, seed, step, site, shape, device)
    p, seed, step, site = (
        value.item() if isinstance(value, torch.Tensor) else value
        for value in (p, seed, step, site)
    )
    _check_scalars(p, seed, step, site)
    padded = (1,) * (MAX_INDICES - len(shape)) + shape
    mask = kept_mask(_threshold(p), stream_key(seed, step, site, len(shape)), padded, causal)
    return torch.from_numpy(mask).reshape(shape)


def stream_key(seed: Integer, step: Integer, site: Integer, indices: int) -> tuple:
    """Key of the stream of one site in one step: two words, Python integers or int64 tensors."""
    seed, step, site = (
        _int64(value) if isinstance(value, torch.Tensor) else value for value in (seed, step, site)
    )
    return philox4x32(
        (site, step & WORD, (step >> 32) & WORD, indices), (seed & WORD, (seed >> 32) & WORD)
    )[:2]


def _mask_in_torch(
    p: Number,
    seed: Integer,
    step: Integer,
    site: Integer,
    shape: tuple[int, ...],
    device: torch.device,
) -> torch.Tensor:
    sizes = (*shape[:-1], -(-shape[-1] // 4))
    grid = [
        torch.arange(size, device=device).reshape((-1,) + (1,) * (len(shape) - 1 - axis))
        for axis, size in enumerate(sizes)
    ]
    absent = [0] * (MAX_INDICES - len(shape))
    words = philox4x32((*reversed(grid), *absent), stream_key(seed, step, site, len(shape)))
    threshold = _threshold(p)
    kept = torch.stack([(word >= threshold).expand(sizes) for word in words], dim=-1)
    return kept.reshape(*shape[:-1], 4 * sizes[-1])[..., : shape[-1]]


def _threshold(p: Number) -> Integer:
    if isinstance(p, torch.Tensor):
        return (p.to(torch.float64) * TWO_TO_32).floor().to(torch.int64)
    return math.floor(p * TWO_TO_32)


def _int64(value: Integer) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.int64)


def _check_index_count(count: int) -> None:
    if not 1 <= count <= MAX_INDICES:
        raise ShapeError(
            f"dropout_keep takes p, seed, step, site and 1 to {MAX_INDICES} indices, "
            f"but {count} indices were given; combine axes into one index"
        )


def _check_scalars(p: Number, seed: Integer, step: Integer, site: Integer) -> None:
    if not isinstance(p, torch.Tensor) and not 0 <= p < 1:
        raise DomainError(_out_of_range("p", "[0, 1)", p))
    for name, value, bits in (("seed", seed, 63), ("step", step, 63), ("site", site, 32)):
        if not isinstance(value, torch.Tensor) and not 0 <= value < 1 << bits:
            raise DomainError(_out_of_range(name, f"[0, 2^{bits})", value))


def _words(name: str, values: npt.ArrayLike, bits: int) -> npt.NDArray[np.uint64]:
    values = np.asarray(values)
    if values.size and (values.min() < 0 or values.max() >= 1 << bits):
        raise DomainError(_out_of_range(name, f"[0, 2^{bits})"))
    return values.astype(np.uint64)


def _out_of_range(name: str, interval: str, value: object = None) -> str:
    shown = "" if value is None else f", got {value}"
    return f"dropout_keep: {name} must be in {interval}{shown}"
