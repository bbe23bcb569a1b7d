"""Checks that pass, checks of other models than a GPT, and requests that cannot be judged."""

import json
import math

import numpy as np
import pytest
import torch
from sql_oracle import (
    GPT,
    AdamWOptions,
    BatchError,
    GPTConfig,
    Mapping,
    MappingError,
    OracleError,
    StateMismatch,
    TensorMap,
    check,
    check_record,
    check_summary,
    check_table,
    decay_all,
    gpt_mapping,
    write_json,
)
from sql_oracle.recorded import initial_weights
from torch import nn


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_correct_session_passes_in_float64(gpt_case, dropout):
    result = gpt_case.but(dropout=dropout).check(5)
    assert result.passed
    assert result.steps == 5
    tables = len(gpt_mapping(gpt_case.config))
    assert len(result.comparisons) == 5 * (3 + 4 * tables)


def test_a_correct_session_passes_in_float32(gpt_case):
    assert gpt_case.but(precision="float32").check(5).passed


def test_a_hundred_steps_do_not_drift(gpt_case):
    case = gpt_case.but(config=GPTConfig(1, 1, 8, 5, 7), dropout=0.1)
    result = case.check(100)
    assert result.passed
    assert max(c.difference.norm for c in result.comparisons) < 1e-8


def test_a_float32_session_does_not_pass_as_float64(gpt_case):
    session = gpt_case.but(precision="float32").session()
    result = gpt_case.check(1, session=session)
    assert result.first_breach is not None


def test_a_session_that_has_made_updates_is_continued(gpt_case):
    session = gpt_case.session()
    assert gpt_case.check(2, session=session).passed
    result = gpt_case.check(2, session=session)
    assert result.passed
    assert {c.step for c in result.comparisons} == {2, 3}


def test_following_judges_every_update_by_itself(gpt_case, faults):
    case = gpt_case.but(faults=faults(beta2=0.98))
    result = case.check(3, follow=True, keep_going=True)
    losses = [c for c in result.comparisons if c.quantity == "loss"]
    assert all(c.passed for c in losses)
    assert not result.passed


def test_a_session_whose_moments_do_not_start_at_zero_is_caught(gpt_case):
    session = gpt_case.session()
    session.m["wpe"] += 1e-6
    breach = gpt_case.check(1, session=session).first_breach
    assert breach is not None
    assert breach.name == "moment of wpe.m"


def test_steps_are_reported_as_they_are_made(gpt_case):
    seen = []
    gpt_case.check(2, on_step=seen.append)
    assert [comparisons[0].step for comparisons in seen] == [0, 1]


class TwoLayers(nn.Module):
    """A user's module, with biases and layers of its own naming."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x, y):
        hidden = torch.tanh(self.first(x))
        return ((self.second(hidden) - y) ** 2).mean()


MLP_MAPPING = {
    "w1": TensorMap("first.weight", axes=(1, 0)),
    "b1": "first.bias",
    "w2": TensorMap("second.weight", axes=(1, 0)),
    "b2": "second.bias",
}


def mlp_session(table_session, seed=0):
    generator = np.random.default_rng(seed)
    tables = {
        "w1": generator.standard_normal((3, 4)),
        "b1": generator.standard_normal(4),
        "w2": generator.standard_normal((4, 2)),
        "b2": generator.standard_normal(2),
    }

    def loss(p, batch, step):
        hidden = torch.tanh(torch.einsum("bi,ij->bj", batch["x"], p["w1"]) + p["b1"])
        out = torch.einsum("bj,jk->bk", hidden, p["w2"]) + p["b2"]
        return ((out - batch["y"]) ** 2).mean()

    return table_session(
        tables,
        loss,
        decay=dict.fromkeys(tables, 0.01),
        learning_rate=lambda step: 1e-3,
        clip_norm=None,
    )


def mlp_batches(count):
    generator = np.random.default_rng(5)
    for _ in range(count):
        yield {"x": generator.standard_normal((6, 3)), "y": generator.standard_normal((6, 2))}


def mlp_check(session, module=None, mapping=None, batches=None, **options):
    settings = {
        "optimizer": AdamWOptions((0.9, 0.99), 1e-8, decay_all(0.01)),
        "learning_rate": 1e-3,
        "precision": "float64",
    }
    return check(
        session,
        module or TwoLayers(),
        mapping or Mapping(MLP_MAPPING),
        mlp_batches(4) if batches is None else batches,
        **{**settings, **options},
    )


def test_a_users_two_layer_model(table_session):
    result = mlp_check(mlp_session(table_session))
    assert result.passed
    assert result.parameters == 3 * 4 + 4 + 4 * 2 + 2


def test_a_users_model_with_another_activation_is_caught(table_session):
    class Other(TwoLayers):
        def forward(self, x, y):
            return ((self.second(torch.relu(self.first(x))) - y) ** 2).mean()

    breach = mlp_check(mlp_session(table_session), Other()).first_breach
    assert breach is not None
    assert breach.name == "loss"


def test_a_mapping_that_leaves_tensors_out(table_session):
    mapping = Mapping({name: MLP_MAPPING[name] for name in ("w1", "b1", "w2")})
    with pytest.raises(MappingError) as caught:
        mlp_check(mlp_session(table_session), mapping=mapping)
    assert caught.value.unmapped_tables == ("b2",)
    assert caught.value.unmapped_parameters == ("second.bias",)


def test_a_model_with_other_shapes(gpt_case):
    other = GPT(GPTConfig(2, 2, 16, 6, 11))
    session = gpt_case.session()
    before = session.state()
    with pytest.raises(MappingError, match=r"reshape|has shape"):
        gpt_case.check(1, session=session, module=other, mapping=gpt_mapping(other.config))
    assert session.step_count == 0
    assert all(np.array_equal(before[name], array) for name, array in session.state().items())


def test_batches_must_suffice(table_session):
    with pytest.raises(BatchError, match="0 batches"):
        mlp_check(mlp_session(table_session), batches=[])
    with pytest.raises(BatchError, match="2 batches were given, 3"):
        mlp_check(mlp_session(table_session), batches=mlp_batches(2), steps=3)


def test_a_loss_of_more_than_one_value(table_session):
    with pytest.raises(BatchError, match=r"shape \(6, 3\)"):
        mlp_check(mlp_session(table_session), loss=lambda module, batch: batch["x"])


def test_an_unknown_precision(table_session):
    with pytest.raises(OracleError, match="float16"):
        mlp_check(mlp_session(table_session), precision="float16")


def test_a_missing_optimizer_slot(table_session):
    class NoSecondMoment(table_session):
        def state(self):
            return {n: a for n, a in super().state().items() if not n.endswith(".v")}

    session = mlp_session(NoSecondMoment)
    with pytest.raises(StateMismatch, match="slot 'v'"):
        mlp_check(session)


def test_gradients_of_other_tables(table_session):
    class Renamed(table_session):
        def gradients(self, batch):
            found = super().gradients(batch)
            found["w3"] = found.pop("w2")
            return found

    with pytest.raises(StateMismatch, match=r"missing \['w2'\], unexpected \['w3'\]"):
        mlp_check(mlp_session(Renamed))


def test_a_session_that_diverges_is_a_breach_not_a_crash(table_session):
    class Broken(table_session):
        def gradients(self, batch):
            found = super().gradients(batch)
            found["w1"][1, 2] = np.nan
            return found

    breach = mlp_check(mlp_session(Broken)).first_breach
    assert breach is not None
    assert breach.name == "gradient of w1"
    assert breach.difference.index == (1, 2)
    assert math.isnan(breach.difference.actual)


def test_the_table_and_the_record(gpt_case, faults, tmp_path):
    passed = gpt_case.check(2)
    text = check_table(passed)
    assert text.count("pass") == 3 + 4 * 9
    assert "step 1" in text
    assert "PASS" in check_summary(passed)

    failed = gpt_case.but(faults=faults(decay={"ln_mlp": 0.1})).check(2)
    assert "BREACH" in check_table(failed)
    assert "FAIL: step 0: weight of ln_mlp" in check_summary(failed)
    write_json(tmp_path / "record.json", check_record(failed, {"dropout": 0.2}))
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["passed"] is False
    assert "ln_mlp" in record["first_breach"]
    assert record["settings"] == {"dropout": 0.2}
    assert len(record["comparisons"]) == len(failed.comparisons)
    wrong = [row for row in record["comparisons"] if not row["passed"]]
    assert wrong[0]["tensor"] == "ln_mlp"
    assert {"index", "session", "pytorch", "norm_error", "step"} <= set(wrong[0])


def test_long_checks_show_the_worst_step(table_session):
    result = mlp_check(mlp_session(table_session), batches=mlp_batches(8))
    assert "at step" in check_table(result)


def test_infinities_become_text_in_a_record(tmp_path):
    write_json(tmp_path / "r.json", {"a": [float("inf"), float("nan"), 1.0]})
    assert json.loads((tmp_path / "r.json").read_text()) == {"a": ["inf", "nan", 1.0]}


def test_the_reference_starts_as_the_recipe_says():
    config = GPTConfig(4, 2, 64, 8, 31)
    model = GPT(config)
    model.initialise(1)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {name: array.shape for name, array in initial_weights(config, 1).items()}
    deviation = float(model.get_parameter("transformer.h.0.mlp.c_proj.weight").detach().std())
    assert deviation == pytest.approx(0.02 / math.sqrt(8), rel=0.05)
    assert sum(p.numel() for p in model.parameters()) == config.parameters


def test_sequences_longer_than_the_context(gpt_case):
    tokens = torch.zeros(1, gpt_case.config.context + 1, dtype=torch.int64)
    with pytest.raises(BatchError, match=r"7 tokens.*context is 6"):
        GPT(gpt_case.config)(tokens, tokens)
