"""Batches of token sequences for checks and benchmarks."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sql_oracle.errors import BatchError, MissingFile, OracleError
from sql_oracle.protocols import Batch
from sql_oracle.reference import GPTConfig

Tokens = npt.NDArray[np.int64]
KEYS = ("tokens", "targets")


def synthetic_batches(
    config: GPTConfig, batch_size: int, steps: int, seed: int
) -> Iterator[dict[str, Tokens]]:
    """Batches of tokens whose frequencies fall as 1 / rank, like those of a text."""
    generator = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, config.vocabulary + 1)
    shape = (batch_size, config.context + 1)
    for _ in range(steps):
        text = generator.choice(config.vocabulary, size=shape, p=weights / weights.sum())
        yield {"tokens": text[:, :-1].copy(), "targets": text[:, 1:].copy()}


def text_batches(
    path: str | Path, config: GPTConfig, batch_size: int, seed: int
) -> Iterator[dict[str, Tokens]]:
    """Endless random batches of a text's characters, numbered in sorted order.

    Raises:
        MissingFile: no such file, or it is not text.
        OracleError: more distinct characters than tokens, or too short for one sequence.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MissingFile(f"cannot read the text {path}: {error}") from error
    characters = sorted(set(text))
    if len(characters) > config.vocabulary:
        raise OracleError(
            f"{path} has {len(characters)} distinct characters; the vocabulary has "
            f"{config.vocabulary}"
        )
    if len(text) <= config.context:
        raise OracleError(
            f"{path} has {len(text)} characters, a sequence needs {config.context + 1}"
        )
    numbers = {character: number for number, character in enumerate(characters)}
    tokens = np.array([numbers[character] for character in text], dtype=np.int64)
    return _windows(tokens, config.context, batch_size, seed)


def _windows(
    tokens: Tokens, context: int, batch_size: int, seed: int
) -> Iterator[dict[str, Tokens]]:
    generator = np.random.default_rng(seed)
    while True:
        starts = generator.integers(0, len(tokens) - context, batch_size)
        windows = tokens[starts[:, None] + np.arange(context + 1)]
        yield {"tokens": windows[:, :-1].copy(), "targets": windows[:, 1:].copy()}


def batch_tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    """Tokens and targets of a batch as int64 tensors on the CPU.

    Raises:
        BatchError: one of them is missing.
    """
    missing = [name for name in KEYS if name not in batch]
    if missing:
        raise BatchError(f"the batch has no {missing}; it has {', '.join(batch) or 'nothing'}")
    tokens, targets = (torch.from_numpy(np.array(batch[name], np.int64)) for name in KEYS)
    return tokens, targets
