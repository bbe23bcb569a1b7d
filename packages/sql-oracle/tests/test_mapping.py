"""Tables to parameters and back, and errors that list both sides' names."""

import numpy as np
import pytest
import torch
from sql_oracle import GPT, GPT_DIMS, GPTConfig, Mapping, MappingError, TensorMap, gpt_mapping
from torch import nn

CONFIG = GPTConfig(layers=3, heads=2, width=4, context=5, vocabulary=7)


def arrays_of(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in module.named_parameters()}


def shapes_of(tables):
    return {name: table.shape for name, table in tables.items()}


def test_the_gpt_round_trips():
    model = GPT(CONFIG)
    model.initialise(3)
    mapping = gpt_mapping(CONFIG)
    before = arrays_of(model)
    tables = mapping.to_tables(before)
    assert {name: len(dims) for name, dims in GPT_DIMS.items()} == {
        name: table.ndim for name, table in tables.items()
    }
    mapping.validate(shapes_of(tables), model)
    other = GPT(CONFIG)
    mapping.load(tables, other)
    assert all(np.array_equal(before[name], array) for name, array in arrays_of(other).items())
    assert other.lm_head.weight is other.transformer["wte"].weight


def test_the_layout_of_queries_keys_and_values():
    model = GPT(CONFIG)
    tables = gpt_mapping(CONFIG).to_tables(arrays_of(model))
    rows = model.get_parameter("transformer.h.1.attn.c_attn.weight").detach().numpy()
    # Part 2 (value), head 1, channel 0 of the head: row 2*width + 1*depth + 0.
    assert np.array_equal(tables["attn_qkv"][1, 2, 1, 0], rows[2 * 4 + 1 * 2 + 0])
    columns = model.get_parameter("transformer.h.2.attn.c_proj.weight").detach().numpy()
    assert np.array_equal(tables["attn_out"][2, :, 1, 1], columns[:, 1 * 2 + 1])


def test_axes_and_shape_of_an_entry():
    entry = TensorMap("w", shape=(2, 3, 4), axes=(2, 0, 1))
    weight = np.arange(24.0).reshape(6, 4)
    table = entry.to_table({"w": weight})
    assert table.shape == entry.table_shape({"w": (6, 4)}) == (4, 2, 3)
    assert table[3, 1, 2] == weight[1 * 3 + 2, 3]
    assert np.array_equal(entry.to_parameters(table, {"w": (6, 4)})["w"], weight)


def test_one_layer_stacks_too():
    config = GPTConfig(layers=1, heads=1, width=4, context=3, vocabulary=5)
    tables = gpt_mapping(config).to_tables(arrays_of(GPT(config)))
    assert tables["ln_attn"].shape == (1, 4)


def linear_pair() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False))


def test_every_missing_name_of_both_sides_is_listed():
    mapping = Mapping({"w1": "0.weight", "ghost": "1.weight", "b": "no.such"})
    shapes = {"w1": (2, 3), "w2": (1, 2), "b": (2,)}
    with pytest.raises(MappingError) as caught:
        mapping.validate(shapes, linear_pair())
    error = caught.value
    assert error.unmapped_tables == ("w2",)
    assert error.unmapped_parameters == ("0.bias",)
    assert error.unknown_tables == ("ghost",)
    assert error.unknown_parameters == ("no.such",)
    for name in ("w2", "0.bias", "ghost", "no.such"):
        assert name in str(error)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (TensorMap("0.weight"), r"table w has shape \(3, 2\).*make \(2, 3\)"),
        (TensorMap("0.weight", shape=(5,)), "does not reshape"),
        (TensorMap("0.weight", axes=(0, 0)), "do not permute"),
        (TensorMap(("0.weight", "1.weight")), "equal shapes"),
        (TensorMap(("0.weight", "0.weight"), stack=False), "must be stacked"),
    ],
)
def test_shapes_that_do_not_fit(entry, message):
    module = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False))
    with pytest.raises(MappingError, match=message):
        Mapping({"w": entry}).validate({"w": (3, 2)}, module)


def test_a_parameter_mapped_twice():
    mapping = Mapping({"a": "0.weight", "b": "0.weight", "c": "0.bias", "d": "1.weight"})
    shapes = {"a": (2, 3), "b": (2, 3), "c": (2,), "d": (1, 2)}
    with pytest.raises(MappingError, match=r"0\.weight is mapped 2 times"):
        mapping.validate(shapes, linear_pair())


def test_another_models_sizes_are_named():
    wider = GPT(GPTConfig(layers=3, heads=2, width=8, context=5, vocabulary=7))
    tables = gpt_mapping(CONFIG).to_tables(arrays_of(GPT(CONFIG)))
    with pytest.raises(MappingError, match=r"does not reshape|has shape"):
        gpt_mapping(CONFIG).validate(shapes_of(tables), wider)


def test_loading_keeps_the_modules_dtype():
    module = nn.Linear(2, 2, bias=False)
    Mapping({"w": "weight"}).load({"w": np.eye(2)}, module)
    assert module.weight.dtype is torch.float32
    assert torch.equal(module.weight, torch.eye(2))
