"""A session that is not the SQL one: same interface, written with einsum over stacked tables.

It lets the oracle be tested by itself. It shares no model code with the package: the forward pass
works on the SQL layout, layer norm, softmax and cross-entropy are composed by hand, the optimizer
is written out, and so are the dropout words (one at a time, in plain integers).
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sql_oracle import (
    CheckResult,
    GPTConfig,
    PhiloxMasks,
    check,
    decay_matrices,
    gpt_mapping,
    warmup_cosine,
)
from sql_oracle import (
    Mapping as TableMapping,
)
from sql_oracle.batches import synthetic_batches
from sql_oracle.reference import GPT
from sql_oracle.training import AdamWOptions, keyword_loss

torch.set_num_threads(1)

Tables = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Faults:
    """What a faulty session does wrong; by default nothing."""

    scale: float = 1.0
    sites: Mapping[int, int] = field(default_factory=dict)
    beta2: float = 0.99
    decay: Mapping[str, float] = field(default_factory=dict)
    decay_before_clip: bool = False
    gradient_entry: str | None = None
    untied: bool = False


@dataclass(frozen=True)
class Report:
    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    valid: bool = True


class TableSession:
    """Trains tables with a loss function, AdamW and clipping."""

    def __init__(
        self,
        tables: Mapping[str, np.ndarray],
        loss: Callable[[Tables, Mapping[str, torch.Tensor], int], torch.Tensor],
        *,
        decay: Mapping[str, float],
        learning_rate: Callable[[int], float],
        clip_norm: float | None = 1.0,
        dtype: torch.dtype = torch.float64,
        faults: Faults | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self.tables = {n: torch.tensor(a).to(dtype) for n, a in tables.items()}
        self.m = {n: torch.zeros_like(t) for n, t in self.tables.items()}
        self.v = {n: torch.zeros_like(t) for n, t in self.tables.items()}
        self.step_count = 0
        self._loss = loss
        self._decay = {**decay, **self.faults.decay}
        self._learning_rate = learning_rate
        self._clip = clip_norm

    def _backward(self, batch: Mapping[str, np.ndarray]) -> tuple[float, Tables]:
        leaves = {n: t.clone().requires_grad_() for n, t in self.tables.items()}
        inputs = {n: torch.as_tensor(np.asarray(a)) for n, a in batch.items()}
        loss = self._loss(leaves, inputs, self.step_count)
        found = torch.autograd.grad(loss, list(leaves.values()))
        gradients = dict(zip(leaves, found, strict=True))
        if self.faults.gradient_entry is not None:
            gradient = gradients[self.faults.gradient_entry].contiguous().clone()
            # An entry of typical size: neither the largest nor one that is nearly zero.
            position = int(gradient.abs().flatten().argsort()[int(0.7 * gradient.numel())])
            gradient.view(-1)[position] *= 1.001
            gradients[self.faults.gradient_entry] = gradient
        return float(loss.detach()), gradients

    def gradients(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {n: g.numpy().copy() for n, g in self._backward(batch)[1].items()}

    def step(self, batch: Mapping[str, np.ndarray]) -> Report:
        loss, gradients = self._backward(batch)
        rate = self._learning_rate(self.step_count)
        if self.faults.decay_before_clip:
            gradients = {n: g + self._decay[n] * self.tables[n] for n, g in gradients.items()}
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients.values()))
        shrink = 1.0 if self._clip is None else min(1.0, self._clip / (norm + 1e-6))
        t = self.step_count + 1
        for name, w in self.tables.items():
            g = gradients[name] * shrink
            self.m[name] = 0.9 * self.m[name] + (1 - 0.9) * g
            self.v[name] = self.faults.beta2 * self.v[name] + (1 - self.faults.beta2) * g * g
            m_hat = self.m[name] / (1 - 0.9**t)
            v_hat = self.v[name] / (1 - self.faults.beta2**t)
            decay = 0.0 if self.faults.decay_before_clip else self._decay[name]
            self.tables[name] = w - rate * decay * w - rate * m_hat / (torch.sqrt(v_hat) + 1e-8)
        report = Report(self.step_count, loss, norm, rate)
        self.step_count += 1
        return report

    def state(self) -> dict[str, np.ndarray]:
        state = {n: t.numpy().copy() for n, t in self.tables.items()}
        state.update({f"{n}.m": t.numpy().copy() for n, t in self.m.items()})
        state.update({f"{n}.v": t.numpy().copy() for n, t in self.v.items()})
        return state


def philox_word(counter: list[int], key: tuple[int, int]) -> list[int]:
    """Philox4x32-7 in plain integers, straight from the paper's definition."""
    x, (k0, k1) = list(counter), key
    for r in range(7):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        key0, key1 = (k0 + r * 0x9E3779B9) % 2**32, (k1 + r * 0xBB67AE85) % 2**32
        x = [(b >> 32) ^ x[1] ^ key0, b % 2**32, (a >> 32) ^ x[3] ^ key1, a % 2**32]
    return x


def plain_mask(rate: float, seed: int, step: int, site: int, shape: tuple[int, ...]) -> np.ndarray:
    """A dropout mask, one block of four entries at a time."""
    stream = philox_word([site, step % 2**32, step >> 32, len(shape)], (seed % 2**32, seed >> 32))
    mask = np.empty(shape)
    for outer in np.ndindex(shape[:-1]):
        inner = [*reversed(outer), 0, 0, 0][:3]
        for block in range(-(-shape[-1] // 4)):
            words = philox_word([block, *inner], (stream[0], stream[1]))
            for lane, word in enumerate(words):
                i = 4 * block + lane
                if i < shape[-1]:
                    dropped = word < math.floor(rate * 2**32)
                    mask[(*outer, i)] = 0.0 if dropped else 1.0 / (1.0 - rate)
    return mask


def gpt_loss(
    config: GPTConfig, dropout: float, seed: int, faults: Faults
) -> Callable[[Tables, Mapping[str, torch.Tensor], int], torch.Tensor]:
    """The GPT's loss on the SQL tables, in einsum."""
    masks: dict[Any, torch.Tensor] = {}

    def drop(x: torch.Tensor, step: int, site: int) -> torch.Tensor:
        if dropout == 0.0:
            return x
        site = faults.sites.get(site, site)
        key = (step, site, tuple(x.shape))
        if key not in masks:
            masks[key] = torch.from_numpy(plain_mask(dropout, seed, *key))
        return x * masks[key].to(x.dtype)

    def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return w * centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)

    def loss(p: Tables, batch: Mapping[str, torch.Tensor], step: int) -> torch.Tensor:
        tokens, targets = batch["tokens"].long(), batch["targets"].long()
        t = tokens.shape[1]
        x = drop(p["wte"][tokens] + p["wpe"][:t], step, 0)
        past = torch.tril(torch.ones(t, t, dtype=torch.bool))
        for layer in range(config.layers):
            y = norm(x, p["ln_attn"][layer])
            q, k, v = torch.einsum("btc,phdc->pbhtd", y, p["attn_qkv"][layer])
            scores = torch.einsum("bhid,bhjd->bhij", q, k)
            scores = scores * faults.scale / math.sqrt(config.head_width)
            powers = torch.exp(scores - scores.detach().amax(-1, keepdim=True)) * past
            attention = drop(powers / powers.sum(-1, keepdim=True), step, 3 * layer + 1)
            y = torch.einsum("bhij,bhjd,chd->bic", attention, v, p["attn_out"][layer])
            x = x + drop(y, step, 3 * layer + 2)
            y = torch.einsum("btc,fc->btf", norm(x, p["ln_mlp"][layer]), p["mlp_in"][layer])
            y = y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0)))
            y = torch.einsum("btf,cf->btc", y, p["mlp_out"][layer])
            x = x + drop(y, step, 3 * layer + 3)
        x = norm(x, p["ln_final"])
        head = p["wte"].detach() if faults.untied else p["wte"]
        logits = torch.einsum("btc,vc->btv", x, head)
        chosen = logits.gather(2, targets[..., None])[..., 0]
        return (torch.logsumexp(logits, -1) - chosen).mean()

    return loss


@dataclass(frozen=True)
class GPTCase:
    """A small check that passes, to be varied by tests."""

    config: GPTConfig = field(
        default_factory=lambda: GPTConfig(layers=2, heads=2, width=8, context=6, vocabulary=11)
    )
    dropout: float = 0.2
    seed: int = 7
    batch_size: int = 2
    precision: str = "float64"
    faults: Faults = Faults()

    def but(self, **changes: Any) -> "GPTCase":
        return replace(self, **changes)

    def tables(self) -> dict[str, np.ndarray]:
        model = GPT(self.config)
        model.initialise(self.seed)
        # Matrices larger than at the start of training, so that attention is far from uniform.
        arrays = {
            n: p.detach().numpy().astype(np.float64) * (8.0 if p.ndim > 1 else 1.0)
            for n, p in model.named_parameters()
        }
        return gpt_mapping(self.config).to_tables(arrays)

    def session(self) -> TableSession:
        tables = self.tables()
        wide = self.precision == "float64"
        return TableSession(
            tables,
            gpt_loss(self.config, self.dropout, self.seed, self.faults),
            decay={n: 0.0 if n.startswith("ln") else 0.1 for n in tables},
            learning_rate=self.schedule(),
            dtype=torch.float64 if wide else torch.float32,
            faults=self.faults,
        )

    def schedule(self) -> Callable[[int], float]:
        return warmup_cosine(1e-3, 1e-4, 2, 50)

    def check(
        self,
        steps: int,
        *,
        session: Any = None,
        mapping: TableMapping | None = None,
        **options: Any,
    ) -> CheckResult:
        model = options.pop("module", None) or GPT(self.config)
        settings: dict[str, Any] = {
            "optimizer": AdamWOptions((0.9, 0.99), 1e-8, decay_matrices(0.1)),
            "learning_rate": self.schedule(),
            "clip_norm": 1.0,
            "precision": self.precision,
            "loss": keyword_loss,
            "before_step": lambda step: model.use_masks(PhiloxMasks(self.dropout, self.seed, step)),
        }
        return check(
            session or self.session(),
            model,
            mapping or gpt_mapping(self.config),
            synthetic_batches(self.config, self.batch_size, steps, self.seed),
            **{**settings, **options},
        )


@pytest.fixture
def gpt_case() -> GPTCase:
    return GPTCase()


@pytest.fixture
def faults() -> type[Faults]:
    return Faults


@pytest.fixture
def table_session() -> type[TableSession]:
    return TableSession


@pytest.fixture
def word_by_word_mask() -> Callable[..., np.ndarray]:
    return plain_mask


@pytest.fixture(scope="session")
def recorded() -> Path:
    folder = os.environ.get("SQL_ORACLE_RECORDED")
    if not folder:
        pytest.skip("SQL_ORACLE_RECORDED does not name a folder of recorded runs")
    return Path(folder)
