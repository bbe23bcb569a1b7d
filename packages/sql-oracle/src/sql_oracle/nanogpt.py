"""The user's own nanoGPT ``model.py`` as the judge or as a contender, read from its file.

Nothing of nanoGPT is contained here. The file is executed as it stands; its module tree is then
asked for what a check needs: dropout modules, and attention on its explicit path.
"""

import hashlib
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from sql_oracle.errors import MissingFile, ModelMismatch
from sql_oracle.masks import MaskSource
from sql_oracle.recorded import nanogpt_shapes
from sql_oracle.reference import (
    EMBEDDING_SITE,
    GPTConfig,
    MaskedDropout,
    attention_output_site,
    attention_site,
    mlp_output_site,
)

#: The file that the recorded runs were made with.
KNOWN_SHA256 = "7c01703240dbec5d554527dc666e35b3df8391d0b117fddc07afcf325a21d11c"


class UnknownModelFile(UserWarning):
    """A nanoGPT file whose contents are not the known ones."""


def load_model_file(path: str | Path) -> ModuleType:
    """Execute a nanoGPT ``model.py``.

    Warns with :class:`UnknownModelFile` when its sha256 is not the known one.

    Raises:
        MissingFile: no such file.
        ModelMismatch: it does not run, or has no ``GPT`` and ``GPTConfig``.
    """
    source = Path(path)
    try:
        text = source.read_bytes()
    except OSError as error:
        raise MissingFile(f"cannot read the nanoGPT file {path}: {error.strerror}") from error
    digest = hashlib.sha256(text).hexdigest()
    name = f"sql_oracle_user_model_{digest[:12]}"
    module = ModuleType(name)
    module.__file__ = str(source)
    # Dataclasses look their module up by name while they are being made.
    sys.modules[name] = module
    try:
        # Exactly what was hashed is run, and no cache is written beside the user's file.
        exec(compile(text, str(source), "exec"), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Whatever a user's file raises, leaving the process included, is an error of the file.
        raise ModelMismatch(f"{source} does not run as Python: {_said(error)}") from error
    finally:
        del sys.modules[name]
    for needed in ("GPT", "GPTConfig"):
        if not hasattr(module, needed):
            raise ModelMismatch(f"{source} has no {needed}; a nanoGPT model file defines it")
    if digest != KNOWN_SHA256:
        warnings.warn(
            f"{source} has sha256 {digest}, not the known {KNOWN_SHA256}; results are those of "
            "this file",
            UnknownModelFile,
            stacklevel=2,
        )
    return module


def build_model(source: ModuleType, config: GPTConfig, dropout: float = 0.0) -> nn.Module:
    """A model of the file with the given sizes, without biases.

    Raises:
        ModelMismatch: the file's model cannot be made, its parameters do not have the names and
            shapes of nanoGPT's, or it does not return a loss.
    """
    settings = {
        "block_size": config.context,
        "vocab_size": config.vocabulary,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_embd": config.width,
        "dropout": dropout,
        "bias": False,
    }
    try:
        model = source.GPT(source.GPTConfig(**settings))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ModelMismatch(
            f"GPT(GPTConfig({', '.join(settings)})) of the file fails: {_said(error)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelMismatch(f"the file's GPT is a {type(model).__name__}, not a torch.nn.Module")
    expected = nanogpt_shapes(config)
    found = {name: tuple(p.shape) for name, p in model.named_parameters()}
    if found != expected:
        wrong = [
            f"{name}: {found.get(name, 'missing')} instead of {expected.get(name, 'nothing')}"
            for name in sorted(found.keys() | expected.keys())
            if found.get(name) != expected.get(name)
        ]
        raise ModelMismatch(f"the file's model is not nanoGPT's: {'; '.join(wrong)}")
    _try_out(model, config)
    return model


@torch.no_grad()
def _try_out(model: nn.Module, config: GPTConfig) -> None:
    """One sequence through the model, without dropout: it must return logits and a loss."""
    tokens = torch.zeros(1, config.context, dtype=torch.int64)
    model.eval()
    try:
        _, loss = model(tokens, tokens)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ModelMismatch(f"the file's model fails on one sequence: {_said(error)}") from error
    finally:
        model.train()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ModelMismatch(
            "the file's model must return logits and a loss of one number when it is called with "
            "tokens and targets"
        )


def _said(error: BaseException) -> str:
    """Kind and first line of an error of the user's file."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class NanoGPT(nn.Module):
    """A model of the user's file, made fit for a check.

    Its dropout modules take explicit masks and attention runs on its explicit path; its own code
    is called for everything else. Parameter names are the file's.

    Args:
        source: from :func:`load_model_file`.
        config: sizes.

    Raises:
        ModelMismatch: the model lacks one of nanoGPT's modules.
    """

    def __init__(self, source: ModuleType, config: GPTConfig) -> None:
        super().__init__()
        model = build_model(source, config)
        try:
            _inject(model, config)
        except AttributeError as error:
            raise ModelMismatch(f"the file's model is not nanoGPT's: {error}") from error
        # Registering its children, not the model itself, keeps the file's parameter names.
        for name, child in model.named_children():
            self.add_module(name, child)
        self._model = (model,)

    def use_masks(self, masks: MaskSource) -> None:
        """Take the dropout masks of the following forward passes from ``masks``."""
        for module in self.modules():
            if isinstance(module, MaskedDropout):
                module.masks = masks

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self._model[0](tokens, targets)[1]


def _inject(model: Any, config: GPTConfig) -> None:
    """Replace every dropout by a masked one and switch attention to the explicit path."""
    causal = torch.tril(torch.ones(config.context, config.context))
    _need_dropout(model.transformer.drop)
    model.transformer.drop = MaskedDropout(EMBEDDING_SITE)
    for layer, block in enumerate(model.transformer.h):
        attention, mlp = block.attn, block.mlp
        for module in (attention.attn_dropout, attention.resid_dropout, mlp.dropout):
            _need_dropout(module)
        attention.attn_dropout = MaskedDropout(attention_site(layer))
        attention.resid_dropout = MaskedDropout(attention_output_site(layer))
        mlp.dropout = MaskedDropout(mlp_output_site(layer))
        attention.flash = False
        if not hasattr(attention, "bias"):
            shape = (1, 1, config.context, config.context)
            attention.register_buffer("bias", causal.view(shape), persistent=False)


def _need_dropout(module: nn.Module) -> None:
    if not isinstance(module, nn.Dropout):
        raise AttributeError(f"there is {type(module).__name__} where nn.Dropout should be")
