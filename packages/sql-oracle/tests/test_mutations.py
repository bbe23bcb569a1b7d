"""The oracle must be able to fail, whichever side has the fault."""

import pytest
from sql_oracle import (
    GPT,
    AdamWOptions,
    Mapping,
    MappingError,
    OracleError,
    PhiloxMasks,
    TensorMap,
    decay_matrices,
    gpt_mapping,
)
from sql_oracle.mutations import MUTATIONS, Judge, mutation
from torch import nn


def judge_for(case) -> Judge:
    return Judge(
        GPT(case.config),
        AdamWOptions((0.9, 0.99), 1e-8, decay_matrices(0.1)),
        lambda step: PhiloxMasks(case.dropout, case.seed, step),
    )


def test_the_unchanged_judge_accepts(gpt_case):
    judge = judge_for(gpt_case)
    assert gpt_case.check(2, module=judge.module, **judge.options()).passed


@pytest.mark.parametrize("entry", MUTATIONS, ids=lambda entry: entry.name)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_fault_of_the_judge_is_caught_and_named(gpt_case, entry, precision):
    judge = entry.apply(judge_for(gpt_case))
    case = gpt_case.but(precision=precision)
    result = case.check(3, module=judge.module, **judge.options())
    entry.verify(result)
    assert not result.passed


SESSION_FAULTS = {
    "scale": {"scale": 1.01},
    "mask site": {"sites": {3: 9}},
    "beta2": {"beta2": 0.991},
    "decay on a norm weight": {"decay": {"ln_final": 0.1}},
    "decay before clip": {"decay_before_clip": True},
    "gradient entry": {"gradient_entry": "mlp_in"},
    "untied embedding": {"untied": True},
}


@pytest.mark.parametrize("name", SESSION_FAULTS)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_the_same_fault_of_the_session_is_caught_and_named(gpt_case, faults, name, precision):
    case = gpt_case.but(faults=faults(**SESSION_FAULTS[name]), precision=precision)
    mutation(name).verify(case.check(3))


def test_every_mutation_is_tried_on_both_sides():
    assert set(SESSION_FAULTS) == {entry.name for entry in MUTATIONS}


def test_a_check_stops_at_the_failing_step_unless_told_to_keep_going(gpt_case, faults):
    case = gpt_case.but(faults=faults(beta2=0.98))
    assert case.check(3).steps == 1
    kept = case.check(3, keep_going=True)
    assert kept.steps == 3
    assert not kept.passed
    assert {breach.step for breach in kept.breaches} == {0, 1, 2}


def test_a_breach_names_step_tensor_index_and_both_values(gpt_case, faults):
    case = gpt_case.but(faults=faults(gradient_entry="attn_out"))
    breach = case.check(1).first_breach
    assert breach is not None
    assert (breach.step, breach.name) == (0, "gradient of attn_out")
    assert len(breach.difference.index) == 4
    assert breach.difference.actual == pytest.approx(1.001 * breach.difference.expected, rel=1e-9)
    text = breach.describe()
    for part in ("step 0", "attn_out", str(breach.difference.index)):
        assert part in text
    assert repr(breach.difference.actual) in text
    assert repr(breach.difference.expected) in text


def test_an_output_layer_of_its_own_is_a_parameter_left_out(gpt_case):
    model = GPT(gpt_case.config)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    with pytest.raises(MappingError) as caught:
        gpt_case.check(1, module=model)
    assert caught.value.unmapped_parameters == ("lm_head.weight",)


def test_a_mutation_that_was_not_caught_is_an_error(gpt_case):
    with pytest.raises(OracleError, match="beta2 was not caught"):
        mutation("beta2").verify(gpt_case.check(1))


def test_a_mutation_caught_as_something_else_is_an_error(gpt_case, faults):
    result = gpt_case.but(faults=faults(beta2=0.98)).check(1)
    with pytest.raises(OracleError, match="expected first one of"):
        mutation("untied embedding").verify(result)


def test_an_unknown_mutation_lists_the_known_ones():
    with pytest.raises(OracleError, match="beta2"):
        mutation("nonsense")


def test_a_swapped_pair_of_tables_is_caught(gpt_case):
    entries = {table: gpt_mapping(gpt_case.config)[table] for table in gpt_mapping(gpt_case.config)}
    entries["ln_attn"], entries["ln_mlp"] = entries["ln_mlp"], entries["ln_attn"]
    result = gpt_case.check(1, mapping=Mapping(entries))
    assert {"gradient of ln_attn", "gradient of ln_mlp"} <= {b.name for b in result.breaches}


def test_queries_taken_for_keys_are_caught(gpt_case):
    config = gpt_case.config
    entries = {table: gpt_mapping(config)[table] for table in gpt_mapping(config)}
    qkv = entries["attn_qkv"]
    assert isinstance(qkv, TensorMap)
    assert qkv.shape is not None
    # Heads before parts: the shape fits only because there are as many rows.
    layers, parts, heads, depth, width = qkv.shape
    entries["attn_qkv"] = TensorMap(
        qkv.names, (layers, heads, parts, depth, width), (0, 2, 1, 3, 4), stack=True
    )
    result = gpt_case.check(1, mapping=Mapping(entries))
    assert result.first_breach is not None
