"""Training in SQL with the state kept on the device.

The entry point is :class:`TrainingSession`.
"""

from .checkpoint import CheckpointFolder
from .errors import CheckpointError, NonFiniteState, OutOfMemory, SessionError
from .inputs import BatchInput
from .loop import FitResult, StopReason, fit
from .optimizers import SGD, AdamW, Lion, Optimizer, ParameterTable
from .reports import Counters, MemoryUse, StepReport
from .schedules import Constant, Schedule, StepDecay, WarmupCosine, WarmupLinear
from .session import TrainingSession
from .shapes import StagedBatch
from .weights import (
    NANOGPT,
    NameMap,
    NameRule,
    export_safetensors,
    import_safetensors,
    read_safetensors,
)

__all__ = [
    "NANOGPT",
    "SGD",
    "AdamW",
    "BatchInput",
    "CheckpointError",
    "CheckpointFolder",
    "Constant",
    "Counters",
    "FitResult",
    "Lion",
    "MemoryUse",
    "NameMap",
    "NameRule",
    "NonFiniteState",
    "Optimizer",
    "OutOfMemory",
    "ParameterTable",
    "Schedule",
    "SessionError",
    "StagedBatch",
    "StepDecay",
    "StepReport",
    "StopReason",
    "TrainingSession",
    "WarmupCosine",
    "WarmupLinear",
    "export_safetensors",
    "fit",
    "import_safetensors",
    "read_safetensors",
]
