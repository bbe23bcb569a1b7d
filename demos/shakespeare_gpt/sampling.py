"""Text drawn from the model, its logits computed by the same SQL that it was trained with."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import xarray as xr
from sql_compact import CompactContext
from sql_resident.gpt import TABLE_DIMS, GPTConfig, logits_sql

from .data import VOCABULARY, encode

__all__ = ["SQLModel", "characters", "draw_token"]

_STREAM = 3  # beside the streams of batches.Stream


class SQLModel:
    """Next-token logits of a fixed window by one SQL query, without dropout.

    Parameters
    ----------
    config:
        Sizes of the model.
    weights:
        Weight tables by name, shapes as ``config.table_shapes``.
    device, precision:
        As in ``sql_compact.CompactContext``.
    """

    def __init__(
        self,
        config: GPTConfig,
        weights: Mapping[str, npt.NDArray[np.floating]],
        *,
        device: str = "cpu",
        precision: str = "float32",
    ) -> None:
        self._config = config
        self._sql = logits_sql(config)
        self._context = CompactContext(device=device, precision=precision)
        for name, dims in TABLE_DIMS.items():
            self._context.register(name, weights[name], dims=dims, column="val")
        hyper = {"dropout": 0.0, "seed": np.int64(0), "step": np.int64(0)}
        self._context.register("hyper", xr.Dataset(hyper))

    def __call__(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Logits of the token after ``tokens``, shape ``(vocabulary,)``; only the last
        ``context`` tokens count, and there must be at least one.

        The window always has ``context`` positions, so the query is planned once: what stands
        after the last token cannot be seen from it.
        """
        recent = np.asarray(tokens, dtype=np.int64)[-self._config.context :]
        window = np.zeros((1, self._config.context), dtype=np.int64)
        window[0, : len(recent)] = recent
        self._context.register(
            "tokens", window, dims=("b", "t"), column="token", domain=self._config.vocabulary
        )
        logits = self._context.sql(self._sql).to_xarray().transpose("b", "t", "v")
        return np.asarray(logits[0, len(recent) - 1], dtype=np.float64)


def draw_token(
    logits: npt.NDArray[np.float64], *, temperature: float, seed: int, position: int
) -> int:
    """A token drawn from ``softmax(logits / temperature)``, a pure function of its arguments."""
    scaled = logits / temperature
    cumulative = np.cumsum(np.exp(scaled - scaled.max()))
    entropy = np.random.SeedSequence((seed, _STREAM, position))
    uniform = np.random.Generator(np.random.Philox(entropy)).random()
    drawn = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return min(int(drawn), len(logits) - 1)


def characters(
    logits: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]],
    *,
    seed: int,
    start: str = "\n",
    temperature: float = 0.8,
) -> Iterator[str]:
    """Endless text continuing ``start``, character by character."""
    tokens = list(encode(start))
    while True:
        token = draw_token(
            logits(np.array(tokens)), temperature=temperature, seed=seed, position=len(tokens)
        )
        tokens.append(token)
        yield VOCABULARY[token]
