"""Native PyTorch opponents of the benchmark.

Three ways to run the same training step, with PyTorch's own dropout:

* eager, as most scripts do;
* ``torch.compile`` of the model, with the optimizer's fused kernel on CUDA;
* graphed, as an expert would: compiled, scaled-dot-product attention, fused capturable AdamW, and
  forward, backward, clipping and update captured in one CUDA graph that is replayed every step.

All read the loss back at every step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from sql_oracle.batches import batch_tensors
from sql_oracle.errors import BatchError, OracleError
from sql_oracle.nanogpt import build_model
from sql_oracle.precision import Precision
from sql_oracle.protocols import Batch
from sql_oracle.reference import NORM_EPS, GPTConfig

#: Eager steps before a capture, so that lazily made state and compiled code exist.
WARM_UP_STEPS = 4


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """What every contender trains.

    Attributes:
        config: sizes.
        precision: policy, see :class:`sql_oracle.Precision`.
        device: "cpu" or "cuda".
        dropout: rate at all four kinds of site.
        learning_rate: of every step.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: on tensors of two or more dims.
        clip_norm: global norm.
        seed: of the weights.
    """

    config: GPTConfig
    precision: Precision
    device: str
    dropout: float = 0.2
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    seed: int = 1337


class Contender(Protocol):
    """Something whose training step is timed."""

    @property
    def name(self) -> str:
        """As it appears in the table."""

    @property
    def upload_timed(self) -> bool:
        """Whether :meth:`step` includes the upload of the batch."""

    def setup(self, batch: Batch) -> None:
        """Everything up to the end of the first step, compilation included."""

    def stage(self, batch: Batch) -> None:
        """Make a batch ready for the next step; not timed."""

    def step(self) -> float:
        """One training step on the staged batch; returns its loss."""

    def counters(self) -> dict[str, int]:
        """Counters to report, if it has any."""


class NativeAttention(nn.Module):
    """Causal attention through ``scaled_dot_product_attention``."""

    def __init__(self, config: GPTConfig, dropout: float) -> None:
        super().__init__()
        self.heads = config.heads
        self.rate = dropout
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=False)
        self.c_proj = nn.Linear(config.width, config.width, bias=False)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(c, dim=2)
        )
        rate = self.rate if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).reshape(b, t, c)))


class NativeBlock(nn.Module):
    """A pre-norm block with PyTorch's own layers."""

    def __init__(self, config: GPTConfig, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=NORM_EPS, bias=False)
        self.attn = NativeAttention(config, dropout)
        self.ln_2 = nn.LayerNorm(config.width, eps=NORM_EPS, bias=False)
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=False)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.dropout(self.c_proj(functional.gelu(self.c_fc(self.ln_2(x)))))


class NativeGPT(nn.Module):
    """The same GPT as the reference, written for speed; ``forward`` returns the loss."""

    def __init__(self, config: GPTConfig, dropout: float) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(NativeBlock(config, dropout) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=NORM_EPS, bias=False)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("positions", torch.arange(config.context), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(self.positions[: tokens.shape[1]]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def native_model(recipe: TrainingRecipe) -> nn.Module:
    """A fresh :class:`NativeGPT` on the recipe's device and in its dtype."""
    model = NativeGPT(recipe.config, recipe.dropout)
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim > 1:
                residual = math.sqrt(2 * recipe.config.layers) if "c_proj" in name else 1.0
                p.normal_(0.0, 0.02 / residual, generator=generator)
    return model.to(recipe.device, recipe.precision.dtype)


def adamw(
    recipe: TrainingRecipe, model: nn.Module, *, fused: bool, capturable: bool = False
) -> torch.optim.AdamW:
    """AdamW with decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    # A captured step must read its learning rate from memory, or a schedule could not change it.
    rate: Any = recipe.learning_rate
    if capturable:
        rate = torch.tensor(recipe.learning_rate, device=recipe.device)
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": recipe.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=rate,
        betas=recipe.betas,
        eps=recipe.eps,
        fused=fused,
        capturable=capturable,
    )


class NativeLoop:
    """A training loop: zero gradients, forward, backward, clip, update, read the loss.

    Args:
        name: of the contender.
        recipe: what is trained.
        compiled: pass the loss module through ``torch.compile``.
        make: builds the module that returns the loss; :func:`native_model` by default.
    """

    upload_timed = False

    def __init__(
        self,
        name: str,
        recipe: TrainingRecipe,
        *,
        compiled: bool = False,
        make: Callable[[TrainingRecipe], nn.Module] = native_model,
    ) -> None:
        self.name = name
        self._recipe = recipe
        self._compiled = compiled
        self._make = make
        self._tokens = torch.empty(0)
        self._targets = torch.empty(0)

    def setup(self, batch: Batch) -> None:
        torch.manual_seed(self._recipe.seed)
        self._model = self._make(self._recipe).train()
        self._loss: Callable[..., Tensor] = self._model
        if self._compiled:
            self._loss = torch.compile(self._model)
        self._optimizer = self._make_optimizer()
        self.stage(batch)
        self.step()

    def stage(self, batch: Batch) -> None:
        tokens, targets = batch_tensors(batch)
        self._tokens = tokens.to(self._recipe.device)
        self._targets = targets.to(self._recipe.device)

    def step(self) -> float:
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._forward_backward()
        self._clip_and_update()
        return float(loss)

    def counters(self) -> dict[str, int]:
        return {}

    def restart(self) -> None:
        """Go back to the first weights and an empty optimizer state, in place."""
        self._model.load_state_dict(self._make(self._recipe).state_dict())
        for state in self._optimizer.state.values():
            for value in state.values():
                value.zero_()

    def set_learning_rate(self, rate: float) -> None:
        """Use another learning rate from the next step on."""
        for group in self._optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def evaluate(self, batch: Batch) -> float:
        """The loss of a batch without dropout."""
        tokens, targets = batch_tensors(batch)
        self._model.eval()
        with torch.no_grad(), self._recipe.precision.active(self._recipe.device):
            loss = self._loss(tokens.to(self._recipe.device), targets.to(self._recipe.device))
        self._model.train()
        return float(loss)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        fused = torch.device(self._recipe.device).type == "cuda"
        return adamw(self._recipe, self._model, fused=fused)

    def _forward_backward(self) -> Tensor:
        with self._recipe.precision.active(self._recipe.device):
            loss = self._loss(self._tokens, self._targets)
            loss.backward()
        return loss.detach()

    def _clip_and_update(self) -> None:
        nn.utils.clip_grad_norm_(self._model.parameters(), self._recipe.clip_norm)
        self._optimizer.step()


class NativeGraphed(NativeLoop):
    """The whole step in one CUDA graph.

    Gradients are None when the capture begins, so the captured backward pass writes them instead of
    adding to them: replaying needs no zeroing, inside the graph or outside. Dropout advances
    PyTorch's generator at every replay.

    Raises:
        OracleError: from ``setup``, without CUDA.
    """

    def setup(self, batch: Batch) -> None:
        if torch.device(self._recipe.device).type != "cuda" or not torch.cuda.is_available():
            raise OracleError("a CUDA graph needs a CUDA device; leave the graphed contender out")
        torch.manual_seed(self._recipe.seed)
        self._model = self._make(self._recipe).train()
        self._loss = torch.compile(self._model) if self._compiled else self._model
        self._optimizer = self._make_optimizer()
        tokens, targets = batch_tensors(batch)
        # Replays read these two buffers; staging writes into them.
        self._tokens = tokens.to(self._recipe.device)
        self._targets = targets.to(self._recipe.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self._optimizer.zero_grad(set_to_none=True)
                self._forward_backward()
                self._clip_and_update()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._optimizer.zero_grad(set_to_none=True)
        # What compiling took is not what a step needs. A graph's memory is counted as it is
        # captured, never as it is replayed.
        torch.cuda.reset_peak_memory_stats()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._captured_loss = self._forward_backward()
            self._clip_and_update()
        self.step()

    def stage(self, batch: Batch) -> None:
        tokens, targets = batch_tensors(batch)
        if tokens.shape != self._tokens.shape:
            raise BatchError(
                f"the captured step takes batches of shape {tuple(self._tokens.shape)}, not "
                f"{tuple(tokens.shape)}"
            )
        self._tokens.copy_(tokens)
        self._targets.copy_(targets)

    def step(self) -> float:
        self._graph.replay()
        return float(self._captured_loss)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        return adamw(self._recipe, self._model, fused=True, capturable=True)


class _LossOnly(nn.Module):
    """A nanoGPT model whose forward returns only the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.model(tokens, targets)[1]


def nanogpt_model(source: ModuleType) -> Callable[[TrainingRecipe], nn.Module]:
    """Builds the user's own nanoGPT model, unmodified, with its own dropout and attention."""

    def make(recipe: TrainingRecipe) -> nn.Module:
        model = build_model(source, recipe.config, recipe.dropout)
        return _LossOnly(model).to(recipe.device, recipe.precision.dtype)

    return make


def native_contenders(
    recipe: TrainingRecipe, *, compiled: bool, nanogpt: ModuleType | None = None
) -> list[NativeLoop]:
    """Every native contender that runs on the recipe's device.

    Args:
        recipe: what is trained.
        compiled: include those that compile; the graphed one also needs CUDA.
        nanogpt: the user's file, see :func:`sql_oracle.nanogpt.load_model_file`.
    """
    found = [NativeLoop("native eager", recipe)]
    if compiled:
        found.append(NativeLoop("native compiled", recipe, compiled=True))
        if torch.device(recipe.device).type == "cuda":
            found.append(NativeGraphed("native graphed", recipe, compiled=True))
    if nanogpt is not None:
        make = nanogpt_model(nanogpt)
        found.append(NativeLoop("nanoGPT eager", recipe, make=make))
        if compiled:
            found.append(NativeLoop("nanoGPT compiled", recipe, compiled=True, make=make))
    return found
