from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sql_resident.checkpoint import ArraySpec, PosixFiles
from sql_resident.errors import CheckpointError
from sql_resident.weights import (
    FORMAT_KEY,
    NANOGPT,
    NameMap,
    NameRule,
    export_safetensors,
    import_safetensors,
    read_safetensors,
)

SIZES = {"v": 7, "c": 4, "t": 5, "layer": 2, "part": 3, "h": 2, "d": 2, "f": 16}


def specs_of(tables: dict[str, np.ndarray]) -> dict[str, ArraySpec]:
    return {name: ArraySpec.of(table) for name, table in tables.items()}


def gpt_tables(dtype: str = "float32") -> dict[str, np.ndarray]:
    """Tables of a small GPT, every number different."""
    tables, start = {}, 0
    for rule in NANOGPT.rules:
        shape = tuple(SIZES[dim] for dim in rule.dims)
        size = int(np.prod(shape))
        tables[rule.table] = np.arange(start, start + size).reshape(shape).astype(dtype)
        start += size
    return tables


def bit_patterns(dtype: str) -> st.SearchStrategy[np.ndarray]:
    shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    bits = npst.arrays(np.dtype(f"u{np.dtype(dtype).itemsize}"), shapes)
    return bits.map(lambda array: array.view(dtype))


tables = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
        lambda name: name != "__metadata__"
    ),
    st.sampled_from(["float32", "float64", "int64"]).flatmap(bit_patterns),
    max_size=4,
)
metadata = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.text(st.characters(codec="utf-8"), max_size=5),
    max_size=3,
)


@settings(deadline=None, max_examples=60)  # the disk sets the pace
@given(tables=tables, metadata=metadata)
def test_import_of_export_is_identity_bit_for_bit(tables, metadata, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "weights.safetensors"
    export_safetensors(path, tables, metadata)
    assert dict(read_safetensors(path).metadata) == metadata
    imported = import_safetensors(path, specs_of(tables))
    assert imported.keys() == tables.keys()
    for name, table in tables.items():
        assert imported[name].dtype == table.dtype
        assert imported[name].shape == table.shape
        assert imported[name].tobytes() == table.tobytes()


def test_the_library_alone_reads_an_export_of_views(tmp_path):
    table = np.arange(24.0).reshape(2, 3, 4)
    views = {"transposed": table.T, "strided": table[:, ::2], "fortran": np.asfortranarray(table)}
    export_safetensors(tmp_path / "w.safetensors", views)
    for name, array in safetensors.numpy.load_file(tmp_path / "w.safetensors").items():
        assert np.array_equal(array, views[name])


def test_the_header_names_the_format(tmp_path):
    path = tmp_path / "w.safetensors"
    export_safetensors(path, {"w": np.zeros(1)}, {"step": "7"})
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"step": "7", FORMAT_KEY: "1"}


def test_another_models_weights_are_refused_with_every_difference(tmp_path):
    path = tmp_path / "w.safetensors"
    export_safetensors(path, {"a": np.zeros(2), "b": np.zeros(3), "c": np.zeros(1)})
    expected = specs_of({"a": np.zeros(2, np.float32), "b": np.zeros((3, 1)), "d": np.zeros(1)})
    with pytest.raises(CheckpointError) as caught:
        import_safetensors(path, expected)
    assert caught.value.mismatches == (
        "a: file float64[2], expected float32[2]",
        "b: file float64[3], expected float64[3, 1]",
        "c: file float64[1], expected none",
        "d: file none, expected float64[1]",
    )
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("tables", "metadata", "message"),
    [
        ({"w": np.zeros(1)}, {"step": 7}, "metadata 'step': 7 is not a pair of strings"),
        ({"w": np.zeros(1)}, {FORMAT_KEY: "9"}, "is the format's own"),
        ({"w": np.array(["text"])}, {}, "cannot export"),
        ({"w": np.array([None])}, {}, "cannot export"),
    ],
)
def test_what_does_not_fit_is_refused_before_writing(tables, metadata, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        export_safetensors(tmp_path / "w.safetensors", tables, metadata)
    assert list(tmp_path.iterdir()) == []


def test_truncated_and_absent_files_are_typed_errors(tmp_path):
    path = tmp_path / "w.safetensors"
    export_safetensors(path, {"w": np.arange(5.0)})
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="cannot import"):
            read_safetensors(path)
    with pytest.raises(CheckpointError, match="cannot import"):
        read_safetensors(tmp_path / "absent.safetensors")


def test_a_failed_export_keeps_the_old_file(tmp_path):
    class FullDisk(PosixFiles):
        def write(self, file, data):
            super().write(file, data[:10])
            raise OSError(28, "No space left on device")

    path = tmp_path / "w.safetensors"
    export_safetensors(path, {"w": np.arange(5.0)})
    with pytest.raises(CheckpointError, match="No space left on device"):
        export_safetensors(path, {"w": np.arange(6.0)}, files=FullDisk())
    assert read_safetensors(path).tables["w"].shape == (5,)
    assert len(list(tmp_path.iterdir())) == 1


def test_nanogpt_names_and_shapes():
    parameters = NANOGPT.to_external(gpt_tables())
    shapes = {name: array.shape for name, array in parameters.items()}
    expected = {
        "transformer.wte.weight": (7, 4),
        "lm_head.weight": (7, 4),
        "transformer.wpe.weight": (5, 4),
        "transformer.ln_f.weight": (4,),
    }
    for layer in range(2):
        block = f"transformer.h.{layer}."
        expected |= {
            block + "ln_1.weight": (4,),
            block + "attn.c_attn.weight": (12, 4),
            block + "attn.c_proj.weight": (4, 4),
            block + "ln_2.weight": (4,),
            block + "mlp.c_fc.weight": (16, 4),
            block + "mlp.c_proj.weight": (4, 16),
        }
    assert shapes == expected


def test_nanogpt_elements_are_where_the_architecture_reads_them():
    tables = gpt_tables()
    parameters = NANOGPT.to_external(tables)
    for layer, part, h, d, c in np.ndindex(tables["attn_qkv"].shape):
        # c_attn's output is split into q, k, v of width C, and each into heads of width D.
        row = part * SIZES["c"] + h * SIZES["d"] + d
        fused = parameters[f"transformer.h.{layer}.attn.c_attn.weight"]
        assert fused[row, c] == tables["attn_qkv"][layer, part, h, d, c]
    for layer, c, h, d in np.ndindex(tables["attn_out"].shape):
        projection = parameters[f"transformer.h.{layer}.attn.c_proj.weight"]
        assert projection[c, h * SIZES["d"] + d] == tables["attn_out"][layer, c, h, d]
    for layer in range(SIZES["layer"]):
        block = f"transformer.h.{layer}."
        assert np.array_equal(parameters[block + "mlp.c_fc.weight"], tables["mlp_in"][layer])
        assert np.array_equal(parameters[block + "mlp.c_proj.weight"], tables["mlp_out"][layer])
        assert np.array_equal(parameters[block + "ln_1.weight"], tables["ln_attn"][layer])
        assert np.array_equal(parameters[block + "ln_2.weight"], tables["ln_mlp"][layer])
    assert np.array_equal(parameters["lm_head.weight"], tables["wte"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_from_external_of_to_external_is_identity(dtype):
    tables = gpt_tables(dtype)
    back = NANOGPT.from_external(NANOGPT.to_external(tables), specs_of(tables))
    assert back.keys() == tables.keys()
    for name, table in tables.items():
        assert back[name].dtype == table.dtype
        assert np.array_equal(back[name], table)


def test_exported_parameters_are_snapshots():
    tables = gpt_tables()
    parameters = NANOGPT.to_external(tables)
    tables["wte"][:] = -1
    assert parameters["transformer.wte.weight"].min() >= 0
    parameters["lm_head.weight"][:] = -2
    assert parameters["transformer.wte.weight"].min() >= 0


def test_masks_prefixes_and_an_absent_tied_name_are_accepted():
    tables = gpt_tables()
    parameters = NANOGPT.to_external(tables)
    del parameters["lm_head.weight"]
    parameters["transformer.h.0.attn.bias"] = np.ones((1, 1, 5, 5), np.float32)
    compiled = {f"_orig_mod.{name}": array for name, array in parameters.items()}
    back = NANOGPT.from_external(compiled, specs_of(tables))
    assert all(np.array_equal(back[name], table) for name, table in tables.items())


def test_another_architectures_parameters_are_refused_with_every_difference():
    tables = gpt_tables()
    parameters = NANOGPT.to_external(tables)
    del parameters["transformer.wpe.weight"]
    parameters["transformer.h.0.ln_1.bias"] = np.zeros(4, np.float32)
    parameters["transformer.h.1.mlp.c_fc.weight"] = np.zeros((4, 16), np.float32)
    parameters["transformer.ln_f.weight"] = np.zeros(4)
    with pytest.raises(CheckpointError) as caught:
        NANOGPT.from_external(parameters, specs_of(tables))
    assert caught.value.mismatches == (
        "transformer.h.0.ln_1.bias: given float32[4], expected none",
        "transformer.h.1.mlp.c_fc.weight: given float32[4, 16], expected float32[16, 4]",
        "transformer.ln_f.weight: given float64[4], expected float32[4]",
        "transformer.wpe.weight: given none, expected float32[5, 4]",
    )


def test_tied_parameters_that_differ_are_refused():
    tables = gpt_tables()
    parameters = NANOGPT.to_external(tables)
    parameters["lm_head.weight"][0, 0] += 1
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: differs from transformer\.wte"):
        NANOGPT.from_external(parameters, specs_of(tables))


def test_missing_and_unknown_tables_are_named():
    tables = gpt_tables()
    tables["bias"] = tables.pop("wpe")
    with pytest.raises(CheckpointError, match=r"lacks the tables \['bias'\].*\['wpe'\]"):
        NANOGPT.to_external(tables)
    with pytest.raises(CheckpointError, match=r"lacks the tables \['bias'\].*\['wpe'\]"):
        NANOGPT.from_external({}, specs_of(tables))


def test_a_table_of_another_number_of_axes_is_named():
    tables = gpt_tables()
    tables["attn_out"] = tables["attn_out"].reshape(2, 4, 4)
    with pytest.raises(CheckpointError, match=r"'attn_out' has shape \(2, 4, 4\); its dims are"):
        NANOGPT.to_external(tables)


def test_rules_slice_and_merge_but_do_not_transpose():
    with pytest.raises(CheckpointError, match="does not transpose"):
        NameRule("w", ("a", "b"), "w", (("b",), ("a",)))
    with pytest.raises(CheckpointError, match="does not transpose"):
        NameRule("w", ("a", "b"), "w.{b}", (("a",),))
    with pytest.raises(CheckpointError, match="differ in placeholders"):
        NameRule("w", ("a", "b"), "w.{a}", (("b",),), aliases=("v",))


def test_two_sliced_dims_and_a_scalar_per_slice():
    names = NameMap((NameRule("w", ("a", "b", "c"), "w.{a}.{b}", (("c",),)),))
    table = np.arange(12.0).reshape(2, 3, 2)
    parameters = names.to_external({"w": table})
    assert parameters["w.1.2"].tolist() == [10.0, 11.0]
    assert len(parameters) == 6
    assert np.array_equal(names.from_external(parameters, specs_of({"w": table}))["w"], table)
    scalars = NameMap((NameRule("s", ("a",), "s{a}", ()),))
    values = np.array([1.5, 2.5])
    parameters = scalars.to_external({"s": values})
    assert parameters["s1"].shape == ()
    assert scalars.from_external(parameters, specs_of({"s": values}))["s"].tolist() == [1.5, 2.5]
