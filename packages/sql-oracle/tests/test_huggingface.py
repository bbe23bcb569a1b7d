"""The reference model against Hugging Face's GPT-2, where it is installed."""

import importlib.util
import sys

import pytest
from sql_oracle import GPTConfig, MissingPackage
from sql_oracle.batches import synthetic_batches
from sql_oracle.huggingface import compare_with_transformers, transformers_limit

CONFIG = GPTConfig(layers=2, heads=2, width=16, context=8, vocabulary=13)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_logits_loss_and_gradients_agree():
    batch = next(synthetic_batches(CONFIG, 3, 1, 0))
    found = compare_with_transformers(CONFIG, batch, seed=4)
    assert len(found) == 2 + 2 + 6 * 2 + 1
    limit = transformers_limit(CONFIG)
    assert {name: entry.norm for name, entry in found.items() if entry.norm > limit} == {}


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    batch = next(synthetic_batches(CONFIG, 1, 1, 0))
    with pytest.raises(MissingPackage, match=r"sql-oracle\[transformers\]"):
        compare_with_transformers(CONFIG, batch, seed=0)
