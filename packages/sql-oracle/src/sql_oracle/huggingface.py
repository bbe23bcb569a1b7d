"""The built-in reference model against Hugging Face's GPT-2 class, when it is installed.

The judge is judged by a third, independent implementation: same weights, logits, loss and every
gradient compared in float64.
"""

import importlib
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sql_oracle.batches import batch_tensors
from sql_oracle.compare import Difference, difference
from sql_oracle.errors import MissingPackage
from sql_oracle.protocols import Array, Batch
from sql_oracle.reference import GPT, NORM_EPS, GPTConfig
from sql_oracle.tolerances import tolerance_for

#: Hugging Face stores these matrices as (in, out).
_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def gpt2_model(config: GPTConfig) -> nn.Module:
    """A ``GPT2LMHeadModel`` of the given sizes with exact GELU, no dropout, and zero biases.

    Raises:
        MissingPackage: transformers is not installed.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
        # The package imports its classes when they are first asked for.
        config_class, model_class = transformers.GPT2Config, transformers.GPT2LMHeadModel
    except ImportError as error:
        raise MissingPackage(
            f"the transformers package cannot be imported ({error}); install "
            "sql-oracle[transformers] to check the reference model against GPT2LMHeadModel"
        ) from error
    settings = config_class(
        vocab_size=config.vocabulary,
        n_positions=config.context,
        n_embd=config.width,
        n_layer=config.layers,
        n_head=config.heads,
        activation_function="gelu",
        layer_norm_epsilon=NORM_EPS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",
    )
    model: nn.Module = model_class(settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model.to(torch.float64)


def compare_with_transformers(config: GPTConfig, batch: Batch, seed: int) -> dict[str, Difference]:
    """Differences of the reference model from GPT-2, in float64 without dropout.

    Args:
        config: sizes.
        batch: ``tokens`` and ``targets``, (b, t).
        seed: of the weights both models get.

    Returns:
        "logits", "loss" and "gradient of NAME" for every parameter of the reference.

    Raises:
        MissingPackage: transformers is not installed.
    """
    other = gpt2_model(config)
    ours = GPT(config).to(torch.float64)
    ours.initialise(seed)
    generator = np.random.default_rng(seed)
    theirs = dict(other.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if parameter.ndim == 1:
                # Norm weights of one would hide a norm that is not applied.
                drawn = 1.0 + 0.1 * generator.standard_normal(tuple(parameter.shape))
                parameter.copy_(torch.from_numpy(drawn))
            theirs[name].copy_(parameter.T if name.endswith(_TRANSPOSED) else parameter)
    tokens, targets = batch_tensors(batch)

    our_logits = ours.logits(tokens)
    our_loss = functional.cross_entropy(our_logits.flatten(0, 1), targets.flatten())
    our_loss.backward()
    their_logits = other(tokens).logits
    their_loss = functional.cross_entropy(their_logits.flatten(0, 1), targets.flatten())
    their_loss.backward()

    found = {
        "logits": difference(_array(our_logits), _array(their_logits)),
        "loss": difference(float(our_loss.detach()), float(their_loss.detach())),
    }
    for name, parameter in ours.named_parameters():
        expected = _array(theirs[name].grad)
        if name.endswith(_TRANSPOSED):
            expected = expected.T
        found[f"gradient of {name}"] = difference(_array(parameter.grad), expected)
    return found


def transformers_limit(config: GPTConfig) -> float:
    """Largest allowed norm error of :func:`compare_with_transformers`: that of a gradient."""
    tolerance = tolerance_for("float64", parameters=config.parameters, steps=1, device="cpu")
    return tolerance.limits["gradient"].norm


def _array(tensor: torch.Tensor | None) -> Array:
    if tensor is None:
        raise RuntimeError("autograd left a gradient out")
    return tensor.detach().numpy()
