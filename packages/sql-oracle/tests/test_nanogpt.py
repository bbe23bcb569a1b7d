"""A user's own model file in nanoGPT's module structure (written here, not nanoGPT's)."""

import textwrap

import numpy as np
import pytest
import torch
from sql_oracle import MissingFile, ModelMismatch, PhiloxMasks
from sql_oracle.nanogpt import (
    KNOWN_SHA256,
    NanoGPT,
    UnknownModelFile,
    build_model,
    load_model_file,
)
from sql_oracle.native import NativeLoop, TrainingRecipe, nanogpt_model
from sql_oracle.precision import precision_policy

STAND_IN = """
    from dataclasses import dataclass
    import torch
    from torch import nn
    import torch.nn.functional as fn

    @dataclass
    class GPTConfig:
        block_size: int = 8
        vocab_size: int = 11
        n_layer: int = 1
        n_head: int = 1
        n_embd: int = 8
        dropout: float = 0.0
        bias: bool = True

    class Norm(nn.Module):
        def __init__(self, width, bias):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))
            self.bias = nn.Parameter(torch.zeros(width)) if bias else None

        def forward(self, x):
            return fn.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)

    class Attend(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.n_head, self.rate = c.n_head, c.dropout
            self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
            self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)
            self.attn_dropout = nn.Dropout(c.dropout)
            self.resid_dropout = nn.Dropout(c.dropout)
            self.flash = True

        def forward(self, x):
            b, t, c = x.size()
            q, k, v = [
                z.reshape(b, t, self.n_head, -1).transpose(1, 2)
                for z in self.c_attn(x).chunk(3, -1)
            ]
            if self.flash:
                rate = self.rate if self.training else 0.0
                y = fn.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
            else:
                a = q @ k.mT / k.size(-1) ** 0.5
                a = a.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
                y = self.attn_dropout(a.softmax(-1)) @ v
            return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(b, t, c)))

    class Feed(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
            self.gelu = nn.GELU()
            self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)
            self.dropout = nn.Dropout(c.dropout)

        def forward(self, x):
            return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))

    class Layer(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.ln_1, self.attn = Norm(c.n_embd, c.bias), Attend(c)
            self.ln_2, self.mlp = Norm(c.n_embd, c.bias), Feed(c)

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.transformer = nn.ModuleDict(dict(
                wte=nn.Embedding(c.vocab_size, c.n_embd),
                wpe=nn.Embedding(c.block_size, c.n_embd),
                drop=nn.Dropout(c.dropout),
                h=nn.ModuleList([Layer(c) for _ in range(c.n_layer)]),
                ln_f=Norm(c.n_embd, c.bias),
            ))
            self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
            self.transformer.wte.weight = self.lm_head.weight

        def forward(self, idx, targets=None):
            place = torch.arange(idx.size(1), device=idx.device)
            x = self.transformer.wte(idx) + self.transformer.wpe(place)
            x = self.transformer.drop(x)
            for layer in self.transformer.h:
                x = layer(x)
            logits = self.lm_head(self.transformer.ln_f(x))
            return logits, fn.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
"""


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(textwrap.dedent(STAND_IN))
    return path


@pytest.fixture
def source(model_file):
    with pytest.warns(UnknownModelFile, match=KNOWN_SHA256):
        return load_model_file(model_file)


def test_the_users_file_is_the_judge(gpt_case, source):
    module = NanoGPT(source, gpt_case.config)
    result = gpt_case.check(
        3,
        module=module,
        before_step=lambda step: module.use_masks(PhiloxMasks(0.2, gpt_case.seed, step)),
    )
    assert result.passed


def test_a_fault_in_the_users_file_is_caught(gpt_case, model_file):
    text = model_file.read_text()
    assert "** 0.5" in text
    model_file.write_text(text.replace("** 0.5", "** 0.51"))
    with pytest.warns(UnknownModelFile):
        module = NanoGPT(load_model_file(model_file), gpt_case.config)
    result = gpt_case.check(
        1,
        module=module,
        before_step=lambda step: module.use_masks(PhiloxMasks(0.2, gpt_case.seed, step)),
    )
    assert not result.passed
    assert "gradient of attn_qkv" in {breach.name for breach in result.breaches}


def test_the_users_model_as_a_contender(gpt_case, source):
    recipe = TrainingRecipe(gpt_case.config, precision_policy("float32"), "cpu")
    loop = NativeLoop("nanoGPT eager", recipe, make=nanogpt_model(source))
    tokens = np.random.default_rng(0).integers(0, 11, (4, 6))
    loop.setup({"tokens": tokens, "targets": tokens})
    losses = [loop.step() for _ in range(30)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(MissingFile, match=r"absent\.py"):
        load_model_file(tmp_path / "absent.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no GPT"),
        ("x = 1\n", "has no GPT"),
        ("GPT = 1\n", "has no GPTConfig"),
        ("raise ValueError('odd')\n", "does not run as Python: ValueError: odd"),
        ("import no_such_package_anywhere\n", "no_such_package_anywhere"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("def broken(\n", "SyntaxError"),
        ("x = 1\0\n", "null bytes"),
    ],
)
@pytest.mark.parametrize("name", ["model.py", "model.txt"])
def test_a_file_that_is_not_a_model(tmp_path, name, text, message, recwarn):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ModelMismatch, match=message):
        load_model_file(path)
    # The digest of a file that is no model at all says nothing.
    assert not [w for w in recwarn if issubclass(w.category, UnknownModelFile)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4 * c.n_embd", "2 * c.n_embd", r"c_fc\.weight: \(16, 8\) instead of \(32, 8\)"),
        ("self.dropout = nn.Dropout(c.dropout)", "self.dropout = nn.Identity()", "Identity"),
        ("drop=nn.Dropout", "dropped=nn.Dropout", "drop"),
        ("bias: bool = True", "biases: bool = True", "GPTConfig.*fails: TypeError"),
        (
            "class GPTConfig:",
            "class Sizes:\n    pass\nGPTConfig = 4\nclass Other:",
            "fails: TypeError",
        ),
        ("class GPT(nn.Module):", "GPT = dict\nclass Other(nn.Module):", "fails: TypeError"),
        ("return logits, fn", "return fn", "fails on one sequence: TypeError"),
        ("targets.view(-1))\n", "targets.view(-1), reduction='none')\n", "loss of one number"),
        (
            "place = torch",
            "raise ValueError('odd\\nmore')\n        place = torch",
            "ValueError: odd$",
        ),
    ],
)
def test_a_model_of_another_structure(gpt_case, model_file, old, new, message):
    text = model_file.read_text()
    assert old in text
    model_file.write_text(text.replace(old, new))
    with pytest.warns(UnknownModelFile):
        source = load_model_file(model_file)
    with pytest.raises(ModelMismatch, match=message):
        NanoGPT(source, gpt_case.config)


def test_a_class_that_is_no_module(gpt_case, tmp_path):
    path = tmp_path / "model.py"
    path.write_text("class GPTConfig:\n    def __init__(self, **sizes): pass\nGPT = type\n")
    with pytest.warns(UnknownModelFile):
        source = load_model_file(path)
    with pytest.raises(ModelMismatch, match=r"not a torch\.nn\.Module"):
        NanoGPT(source, gpt_case.config)


def test_trying_a_model_out_leaves_it_in_training_and_draws_nothing(gpt_case, source):
    torch.manual_seed(3)
    drawn = build_model(source, gpt_case.config, dropout=0.5), torch.rand(4)
    torch.manual_seed(3)
    sizes = {"block_size": 6, "vocab_size": 11, "n_layer": 2, "n_head": 2, "n_embd": 8}
    source.GPT(source.GPTConfig(**sizes, dropout=0.5, bias=False))
    assert torch.equal(drawn[1], torch.rand(4))
    assert drawn[0].training


def test_the_known_file_gives_no_warning(model_file, monkeypatch, recwarn):
    import hashlib

    digest = hashlib.sha256(model_file.read_bytes()).hexdigest()
    monkeypatch.setattr("sql_oracle.nanogpt.KNOWN_SHA256", digest)
    load_model_file(model_file)
    assert not [w for w in recwarn if issubclass(w.category, UnknownModelFile)]


def test_explicit_attention_replaces_the_fused_one(gpt_case, source):
    module = NanoGPT(source, gpt_case.config)
    attention = module.get_submodule("transformer.h.0.attn")
    assert attention.flash is False
    assert attention.bias.shape == (1, 1, 6, 6)
    assert torch.equal(attention.bias[0, 0], torch.tril(torch.ones(6, 6)))
    assert "transformer.h.0.attn.bias" not in module.state_dict()
