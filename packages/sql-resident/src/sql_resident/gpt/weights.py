"""Initial weights, as nanoGPT draws them."""

from math import sqrt

import numpy as np
import numpy.typing as npt

from .config import TABLE_DIMS, GPTConfig

__all__ = ["RESIDUAL_TABLES", "initial_weights", "is_matrix"]

#: Tables whose products are added to the residual stream. Their deviation is divided by
#: ``sqrt(2 * layers)``, so that the stream's variance does not grow with depth
#: (Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3).
RESIDUAL_TABLES = frozenset({"attn_out", "mlp_out"})
_DEVIATION = 0.02


def is_matrix(table: str) -> bool:
    """Whether ``table`` holds matrices, which weight decay applies to, and not norm weights."""
    return bool(set(TABLE_DIMS[table]) - {"layer", "c"})


def initial_weights(config: GPTConfig, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Initial value of every weight table, a pure function of ``(config, seed)``.

    Matrices are normal with mean 0 and deviation 0.02, those of :data:`RESIDUAL_TABLES`
    0.02 / sqrt(2 * layers); norm weights are 1. Each table has a random stream of its own.
    """
    tables: dict[str, npt.NDArray[np.float32]] = {}
    for index, (name, shape) in enumerate(config.table_shapes.items()):
        if not is_matrix(name):
            tables[name] = np.ones(shape, dtype=np.float32)
            continue
        deviation = _DEVIATION / (sqrt(2 * config.layers) if name in RESIDUAL_TABLES else 1.0)
        stream = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, index))))
        tables[name] = np.float32(deviation) * stream.standard_normal(shape, dtype=np.float32)
    return tables
