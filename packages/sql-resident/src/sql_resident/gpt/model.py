"""The model as SQL: each file of this folder is a list of CTEs, put together here.

Read ``embedding.sql``, ``block.sql``, ``head.sql`` and ``cross_entropy.sql`` in this order; they
are the whole model. ``{layer}`` and its like are filled in for each block.
"""

from functools import cache
from importlib.resources import files

from .config import GPTConfig, dropout_sites

__all__ = ["logits_sql", "loss_sql"]

_EMBEDDING_SITE = 0


def loss_sql(config: GPTConfig) -> str:
    """SQL of the mean cross-entropy (nats a token), one row with one column ``loss``.

    Reads the weight tables, ``tokens (b, t, token)``, ``targets (b, t, token)`` and the one-row
    table ``hyper (dropout, seed, step)``.
    """
    ctes = (*_logits_ctes(config), _read("cross_entropy"))
    return _query(ctes, "SELECT AVG(val) AS loss FROM nll")


def logits_sql(config: GPTConfig) -> str:
    """SQL of the next-token logits, ``(b, t, v, val)``; reads what :func:`loss_sql` reads but
    ``targets``. For predictions, ``hyper.dropout`` must be 0."""
    return _query(_logits_ctes(config), "SELECT b, t, v, val FROM logits")


def _logits_ctes(config: GPTConfig) -> tuple[str, ...]:
    blocks = (
        _read("block").format(
            layer=layer,
            next_layer=layer + 1,
            head_width=config.head_width,
            **dropout_sites(layer),
        )
        for layer in range(config.layers)
    )
    return (
        _read("embedding").format(embedding_site=_EMBEDDING_SITE),
        *blocks,
        _read("head").format(layers=config.layers),
    )


def _query(ctes: tuple[str, ...], select: str) -> str:
    return "WITH\n" + ",\n\n".join(ctes) + "\n\n" + select


@cache
def _read(name: str) -> str:
    return files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8").strip()
