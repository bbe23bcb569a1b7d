"""Optimizers, each one module of SQL."""

from .adamw import AdamW
from .base import Optimizer, ParameterTable
from .lion import Lion
from .sgd import SGD

__all__ = ["SGD", "AdamW", "Lion", "Optimizer", "ParameterTable"]
