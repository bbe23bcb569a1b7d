"""A GPT in SQL: the model that the Shakespeare demo trains and the oracle checks.

The model is the ``.sql`` files of this folder, read in the order ``embedding.sql``,
``block.sql``, ``head.sql``, ``cross_entropy.sql``.
"""

from .config import TABLE_DIMS, GPTConfig, dropout_sites
from .model import logits_sql, loss_sql
from .weights import RESIDUAL_TABLES, initial_weights, is_matrix

__all__ = [
    "RESIDUAL_TABLES",
    "TABLE_DIMS",
    "GPTConfig",
    "dropout_sites",
    "initial_weights",
    "is_matrix",
    "logits_sql",
    "loss_sql",
]
