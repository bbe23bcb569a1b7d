"""The oracle's own GPT, written with ``torch.nn`` from the published description.

Radford et al., "Language models are unsupervised multitask learners" (2019): pre-norm transformer
blocks on learned token and position embeddings, a final layer norm, and an output layer tied to
the token embedding. Module names follow nanoGPT's, so that state dicts are interchangeable. There
are no biases, GELU is the exact one, attention is written out, and every dropout site takes its
mask from outside.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sql_oracle.errors import BatchError, ModelMismatch
from sql_oracle.masks import MaskSource, NoMasks

NORM_EPS = 1e-5
EMBEDDING_SITE = 0


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes of a GPT.

    Attributes:
        layers: number of blocks.
        heads: attention heads; they divide ``width``.
        width: channels of the residual stream.
        context: longest sequence.
        vocabulary: number of tokens.
    """

    layers: int = 6
    heads: int = 6
    width: int = 384
    context: int = 256
    vocabulary: int = 65

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "context", "vocabulary"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int):
                raise ModelMismatch(f"{name} must be a whole number, it is {size!r}")
            # A norm of one channel is 0 whatever its weights are, and so is every gradient.
            least = 2 if name == "width" else 1
            if size < least:
                raise ModelMismatch(f"{name} must be at least {least}, it is {size}")
        if self.width % self.heads:
            raise ModelMismatch(f"width {self.width} is not a multiple of {self.heads} heads")

    @property
    def head_width(self) -> int:
        """Channels of one head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """Number of weights, the tied embedding counted once."""
        block = 12 * self.width * self.width + 2 * self.width
        tables = (self.vocabulary + self.context) * self.width
        return self.layers * block + tables + self.width


def attention_site(layer: int) -> int:
    """Dropout site of a layer's attention probabilities, indices (b, h, query, key)."""
    return 3 * layer + 1


def attention_output_site(layer: int) -> int:
    """Dropout site of a layer's attention output projection, indices (b, t, c)."""
    return 3 * layer + 2


def mlp_output_site(layer: int) -> int:
    """Dropout site of a layer's MLP output, indices (b, t, c)."""
    return 3 * layer + 3


class MaskedDropout(nn.Module):
    """Multiplies by a mask that a :class:`MaskSource` gives for this site."""

    def __init__(self, site: int) -> None:
        super().__init__()
        self.site = site
        self.masks: MaskSource = NoMasks()

    def forward(self, x: Tensor) -> Tensor:
        wide = np.float64 if x.dtype is torch.float64 else np.float32
        mask = self.masks(self.site, tuple(x.shape), wide)
        if mask is None:
            return x
        return x * torch.from_numpy(mask).to(x.device)


class Attention(nn.Module):
    """Causal self-attention with the probabilities written out."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.heads = config.heads
        self.scale = 1.0 / math.sqrt(config.head_width)
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=False)
        self.c_proj = nn.Linear(config.width, config.width, bias=False)
        self.attn_dropout = MaskedDropout(attention_site(layer))
        self.resid_dropout = MaskedDropout(attention_output_site(layer))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        qkv = self.c_attn(x).to(x.dtype).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(2, 3)).to(x.dtype) * self.scale
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        probabilities = torch.softmax(scores.masked_fill(future, -math.inf), dim=3)
        mixed = torch.matmul(self.attn_dropout(probabilities), v).to(x.dtype)
        joined = mixed.transpose(1, 2).reshape(b, t, c)
        return self.resid_dropout(self.c_proj(joined).to(x.dtype))


class MLP(nn.Module):
    """Two linear layers around the exact GELU."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=False)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=False)
        self.dropout = MaskedDropout(mlp_output_site(layer))

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.c_fc(x).to(x.dtype), approximate="none")
        return self.dropout(self.c_proj(hidden).to(x.dtype))


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=NORM_EPS, bias=False)
        self.attn = Attention(config, layer)
        self.ln_2 = nn.LayerNorm(config.width, eps=NORM_EPS, bias=False)
        self.mlp = MLP(config, layer)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A GPT whose output layer is its token embedding.

    ``forward(tokens, targets)`` takes int64 (b, t) arrays and returns the mean cross-entropy of
    all positions, a scalar; ``logits(tokens)`` returns (b, t, vocabulary).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocabulary, config.width),
                "wpe": nn.Embedding(config.context, config.width),
                "drop": MaskedDropout(EMBEDDING_SITE),
                "h": nn.ModuleList(Block(config, layer) for layer in range(config.layers)),
                "ln_f": nn.LayerNorm(config.width, eps=NORM_EPS, bias=False),
            }
        )
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight
        self.initialise(seed=0)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw fresh weights: normal with deviation 0.02, residual projections over sqrt(2 L).

        The numbers come from a numpy generator, so they do not depend on the device.
        """
        generator = np.random.default_rng(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            residual = name.endswith("c_proj.weight")
            deviation = 0.02 / math.sqrt(2 * self.config.layers) if residual else 0.02
            drawn = generator.standard_normal(tuple(parameter.shape)) * deviation
            parameter.copy_(torch.from_numpy(drawn))

    def use_masks(self, masks: MaskSource) -> None:
        """Take the dropout masks of the following forward passes from ``masks``."""
        for module in self.modules():
            if isinstance(module, MaskedDropout):
                module.masks = masks

    def logits(self, tokens: Tensor) -> Tensor:
        """Scores of the next token, (b, t, vocabulary).

        Raises:
            BatchError: the sequences are longer than the context.
        """
        t = tokens.shape[1]
        if t > self.config.context:
            raise BatchError(
                f"sequences of {t} tokens; the model's context is {self.config.context}"
            )
        position = torch.arange(t, device=tokens.device)
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](position)
        x = self.transformer["drop"](x)
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)
        return self.lm_head(x).to(x.dtype)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(tokens)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
