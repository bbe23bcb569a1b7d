"""Where and how programs run."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sql_compact import Precision


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how programs run."""

    device: torch.device
    precision: Precision
    compiled: bool

    @property
    def captured(self) -> bool:
        """Whether steps are CUDA graphs."""
        return self.device.type == "cuda"

    @property
    def fixed(self) -> bool:
        """Whether arrays keep their places in memory, as compiled and captured steps need."""
        return self.compiled or self.captured
