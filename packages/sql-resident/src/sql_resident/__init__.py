"""Training in SQL with the state kept on the device.

The entry point is :class:`TrainingSession`.
"""

from .checkpoint import CheckpointFolder
from .errors import CheckpointError, NonFiniteState, SessionError
from .inputs import BatchInput
from .optimizers import SGD, AdamW, Lion, Optimizer, ParameterTable
from .schedules import Constant, Schedule, StepDecay, WarmupCosine, WarmupLinear
from .session import Counters, StepReport, TrainingSession
from .weights import NANOGPT, NameMap, NameRule, export_safetensors, import_safetensors

__all__ = [
    "NANOGPT",
    "SGD",
    "AdamW",
    "BatchInput",
    "CheckpointError",
    "CheckpointFolder",
    "Constant",
    "Counters",
    "Lion",
    "NameMap",
    "NameRule",
    "NonFiniteState",
    "Optimizer",
    "ParameterTable",
    "Schedule",
    "SessionError",
    "StepDecay",
    "StepReport",
    "TrainingSession",
    "WarmupCosine",
    "WarmupLinear",
    "export_safetensors",
    "import_safetensors",
]
