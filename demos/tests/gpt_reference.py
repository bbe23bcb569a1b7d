"""Independent references for the SQL model: PyTorch for its value and gradients, NumPy for its
dropout masks, and DataFusion's row engine to run the SQL as it stands."""

import re
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from datafusion import SessionContext, udf
from ddxdb import ad
from scipy.special import erf as scipy_erf
from sql_resident.gpt import TABLE_DIMS, GPTConfig
from torch.nn import functional

_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple, key: tuple, rounds: int) -> tuple:
    """Philox4x32 of Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; words are
    unsigned 64-bit arrays holding 32-bit values."""
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in key)
    mask = np.uint64(_MASK)
    shift = np.uint64(32)
    for _ in range(rounds):
        first, second = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (second >> shift) ^ c1 ^ k0,
            second & mask,
            (first >> shift) ^ c3 ^ k1,
            first & mask,
        )
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1, c2, c3


def dropout_keep(
    p: float, seed: int, step: int, site: int, *indices: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """0 where a value is dropped and 1 / (1 - p) where it is kept, indices broadcast."""
    stream = philox4x32(
        (site, step & _MASK, step >> 32, len(indices)), (seed & _MASK, seed >> 32), rounds=7
    )
    reversed_indices = [np.asarray(index, dtype=np.uint64) for index in reversed(indices)]
    last, *others = np.broadcast_arrays(*reversed_indices)
    others += [np.zeros_like(last)] * (3 - len(others))
    words = philox4x32((last // np.uint64(4), *others), stream[:2], rounds=7)
    word = np.choose((last % np.uint64(4)).astype(np.intp), words)
    return np.where(word < np.uint64(int(p * 2**32)), 0.0, 1.0 / (1.0 - p))


def reference_loss(
    config: GPTConfig,
    weights: Mapping[str, torch.Tensor],
    tokens: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    *,
    seed: int,
    step: int,
) -> torch.Tensor:
    """The loss in PyTorch, from weights of the tables' shapes (differentiable)."""
    batch, context = tokens.shape
    heads, head_width, width = config.heads, config.head_width, config.width

    def keep(site: int, *sizes: int) -> torch.Tensor:
        indices = np.indices(sizes)
        return torch.from_numpy(dropout_keep(config.dropout, seed, step, site, *indices))

    stream = weights["wte"][torch.from_numpy(tokens)] + weights["wpe"][:context]
    stream = stream * keep(0, batch, context, width)
    future = torch.ones(context, context, dtype=torch.bool).triu(1)
    for layer in range(config.layers):
        normed = functional.layer_norm(stream, (width,), weights["ln_attn"][layer])
        q, k, v = torch.einsum("btc,phdc->pbhtd", normed, weights["attn_qkv"][layer])
        scores = (q @ k.transpose(-1, -2) / head_width**0.5).masked_fill(future, float("-inf"))
        attention = scores.softmax(-1) * keep(3 * layer + 1, batch, heads, context, context)
        mixed = torch.einsum("bhtd,chd->btc", attention @ v, weights["attn_out"][layer])
        stream = stream + mixed * keep(3 * layer + 2, batch, context, width)
        normed = functional.layer_norm(stream, (width,), weights["ln_mlp"][layer])
        hidden = functional.gelu(normed @ weights["mlp_in"][layer].T) @ weights["mlp_out"][layer].T
        stream = stream + hidden * keep(3 * layer + 3, batch, context, width)
    logits = functional.layer_norm(stream, (width,), weights["ln_final"]) @ weights["wte"].T
    return functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())


def row_engine(
    config: GPTConfig,
    weights: Mapping[str, npt.NDArray[np.float64]],
    tokens: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    *,
    seed: int,
    step: int,
) -> SessionContext:
    """A plain DataFusion context with the model's tables as rows and its functions."""
    context = SessionContext()
    ad.register_stop_gradient(context)
    for name, values in weights.items():
        _register_rows(context, name, TABLE_DIMS[name], values, "val")
    _register_rows(context, "tokens", ("b", "t"), tokens, "token")
    _register_rows(context, "targets", ("b", "t"), targets, "token")
    hyper = pa.table({"step": [step], "seed": [seed], "dropout": [config.dropout]})
    context.register_record_batches("hyper", [hyper.to_batches()])

    double, integer = pa.float64(), pa.int64()
    context.register_udf(
        udf(lambda x: pa.array(scipy_erf(x.to_numpy())), [double], double, "immutable", "erf")
    )
    for count in (3, 4):
        types = [double, *[integer] * (3 + count)]
        context.register_udf(udf(_keep_rows, types, double, "immutable", f"dropout_keep_{count}"))
    return context


def rows_sql(sql: str) -> str:
    """``sql`` with a name of its own for each number of ``dropout_keep``'s indices, since a
    Python function of DataFusion has one fixed number of arguments."""

    def rename(call: re.Match) -> str:
        return f"dropout_keep_{call[1].count(',') - 3}({call[1]})"

    return re.sub(r"dropout_keep\(([^()]*)\)", rename, sql)


def run_rows(context: SessionContext, sql: str) -> pa.Table:
    """Run a query of the model on rows, each CTE once: DataFusion inlines a CTE wherever it is
    read, which is exponential in the number of layers. Relies on the layout of the SQL files."""
    *ctes, select = re.split(r"^(\w+) AS \($(.*?)^\),?$", sql, flags=re.MULTILINE | re.DOTALL)
    for name, body in zip(ctes[1::3], ctes[2::3], strict=True):
        batches = context.sql(rows_sql(body)).collect()
        context.register_record_batches(name, [batches])
    table = context.sql(select).to_arrow_table()
    for name in ctes[1::3]:
        context.deregister_table(name)
    return table


def with_erf_gradient(sql: str) -> str:
    """``sql`` with ``erf`` written so that ddx differentiates it: for a function f with derivative
    f', ``stop(f(x)) + stop(f'(x)) * (x - stop(x))`` has value f(x) and gradient f'(x)."""

    def identity(call: re.Match) -> str:
        x, stop = call[1], "ddx_stop_gradient"
        slope = f"{2 / np.pi**0.5!r} * exp(-({x}) * ({x}))"
        return f"({stop}(erf({x})) + {stop}({slope}) * (({x}) - {stop}({x})))"

    return re.sub(r"erf\(((?:[^()]|\([^()]*\))*)\)", identity, sql)


def _keep_rows(p: pa.Array, seed: pa.Array, step: pa.Array, site: pa.Array, *indices: pa.Array):
    if len(p) == 0:
        return pa.array([], pa.float64())
    scalars = (p[0].as_py(), seed[0].as_py(), step[0].as_py(), site[0].as_py())
    return pa.array(dropout_keep(*scalars, *(index.to_numpy() for index in indices)))


def _register_rows(
    context: SessionContext, name: str, dims: tuple[str, ...], values: np.ndarray, column: str
) -> None:
    columns = dict(zip(dims, np.indices(values.shape).reshape(len(dims), -1), strict=True))
    table = pa.table({**columns, column: values.reshape(-1)})
    context.register_record_batches(name, [table.to_batches()])
