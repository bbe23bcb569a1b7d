"""sql-oracle: an independent PyTorch judge of neural networks trained in SQL."""

from sql_oracle.check import CheckResult, Comparison, check
from sql_oracle.compare import Difference, difference
from sql_oracle.errors import (
    BatchError,
    MappingError,
    MissingFile,
    MissingPackage,
    ModelMismatch,
    OracleError,
    StateMismatch,
    UnwritableFile,
)
from sql_oracle.floors import Floor, NoiseFloor
from sql_oracle.mapping import GPT_DIMS, Mapping, TensorMap, gpt_mapping
from sql_oracle.masks import MaskSource, NoMasks, PhiloxMasks
from sql_oracle.native import NativeGraphed, NativeLoop, TrainingRecipe
from sql_oracle.precision import PRECISIONS, Precision, precision_policy
from sql_oracle.protocols import Session
from sql_oracle.reference import GPT, GPTConfig
from sql_oracle.report import check_record, check_summary, check_table, write_json
from sql_oracle.tolerances import Tolerance, tolerance_for
from sql_oracle.training import (
    AdamWOptions,
    TorchTrainer,
    decay_all,
    decay_matrices,
    keyword_loss,
    warmup_cosine,
)

__all__ = [
    "GPT",
    "GPT_DIMS",
    "PRECISIONS",
    "AdamWOptions",
    "BatchError",
    "CheckResult",
    "Comparison",
    "Difference",
    "Floor",
    "GPTConfig",
    "Mapping",
    "MappingError",
    "MaskSource",
    "MissingFile",
    "MissingPackage",
    "ModelMismatch",
    "NativeGraphed",
    "NativeLoop",
    "NoMasks",
    "NoiseFloor",
    "OracleError",
    "PhiloxMasks",
    "Precision",
    "Session",
    "StateMismatch",
    "TensorMap",
    "Tolerance",
    "TorchTrainer",
    "TrainingRecipe",
    "UnwritableFile",
    "check",
    "check_record",
    "check_summary",
    "check_table",
    "decay_all",
    "decay_matrices",
    "difference",
    "gpt_mapping",
    "keyword_loss",
    "precision_policy",
    "tolerance_for",
    "warmup_cosine",
    "write_json",
]
