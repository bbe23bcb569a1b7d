"""Inputs of a step: one block of host memory, one copy to the device."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

#: Inputs start at multiples of this many bytes, as vectorized loads on the device want.
_ALIGNMENT = 256


class Staging:
    """Places for arrays that are new at every step.

    All that comes from the CPU lies in one block, so that an upload is one copy; what is on
    the device already has a buffer of its own. Places never move, as CUDA graphs need.
    Uploads do not wait for the device: two blocks of host memory take turns, so that one can
    be filled while the other is still being read.

    Args:
        inputs: the first step's arrays; later ones have the same shapes and devices.
        dtypes: element type of each on the device.
    """

    def __init__(
        self,
        inputs: Mapping[str, torch.Tensor],
        dtypes: Mapping[str, torch.dtype],
        device: torch.device,
    ) -> None:
        pinned = device.type == "cuda"
        offsets: dict[str, int] = {}
        end = 0
        for name, tensor in inputs.items():
            if tensor.device.type == "cpu":
                offsets[name] = end
                size = tensor.numel() * dtypes[name].itemsize
                end += math.ceil(size / _ALIGNMENT) * _ALIGNMENT
        self._block = torch.zeros(end, dtype=torch.uint8, device=device)
        self._host = [torch.zeros(end, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._views: list[dict[str, np.ndarray]] = [{}, {}]
        #: What the step reads, by input name.
        self.arrays: dict[str, torch.Tensor] = {}
        for name, tensor in inputs.items():
            if name in offsets:
                place = (offsets[name], tensor.shape, dtypes[name])
                for host, views in zip(self._host, self._views, strict=True):
                    views[name] = _view(host, *place).numpy()
                self.arrays[name] = _view(self._block, *place)
            else:
                self.arrays[name] = torch.empty(tensor.shape, dtype=dtypes[name], device=device)

    def upload(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Copy the arrays to their places on the device."""
        self._host.reverse()
        self._views.reverse()
        views = self._views[0]
        for name, target in self.arrays.items():
            if name in views:
                views[name][...] = inputs[name].numpy()
            else:
                target.copy_(inputs[name])
        self._block.copy_(self._host[0], non_blocking=True)


def _view(block: torch.Tensor, offset: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    return block[offset : offset + size].view(dtype).reshape(shape)
