import numpy as np
import pyarrow as pa
import pytest
import torch
from datafusion import SessionContext
from sql_compact.errors import DomainError, ShapeError
from sql_compact.functions import mask_cpu
from sql_compact.functions.dropout import (
    _mask_in_torch,
    dropout_keep,
    dropout_keep_numpy,
    dropout_mask,
)
from sql_compact.functions.philox import philox4x32
from sql_compact.functions.udf import register_functions

SHAPES = [
    (1,),
    (5,),
    (0,),
    (40_000,),
    (4, 7),
    (3, 0, 4),
    (3, 5, 6),
    (2, 3, 5, 9),
    (700, 1, 1, 8),
    (2, 3, 70_000),
]
STREAMS = [(0.2, 1337, 7, 3), (0.5, (1 << 40) + 5, (1 << 35) + 1, (1 << 32) - 1), (0.999, 0, 0, 0)]


def by_definition(p, seed, step, site, *indices):
    """The documented formula for one entry, in Python integers."""
    word = 0xFFFFFFFF
    counter = (site, step & word, step >> 32, len(indices))
    key = philox4x32(counter, (seed & word, seed >> 32))[:2]
    last, *rest = reversed(indices)
    rest = [*rest, 0, 0, 0][:3]
    drawn = philox4x32((last // 4, *rest), key)[last % 4]
    return 0.0 if drawn < int(p * 2**32) else 1 / (1 - p)


@pytest.mark.parametrize("indices", [(6,), (9, 3), (1, 2, 13), (4, 3, 2, 1), ((1 << 32) - 1,) * 4])
@pytest.mark.parametrize("stream", STREAMS)
def test_every_form_follows_the_definition(stream, indices):
    expected = by_definition(*stream, *indices)
    assert float(dropout_keep_numpy(*stream, *indices)) == expected
    assert float(dropout_keep(*stream, *indices)) == expected
    tensors = [torch.tensor(value) for value in (*stream[1:], *indices)]
    p = torch.tensor(stream[0], dtype=torch.float64)
    assert float(dropout_keep(p, *tensors)) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("stream", STREAMS)
def test_mask_equals_the_reference_on_the_index_grid(shape, stream):
    grid = np.indices(shape)
    reference = dropout_keep_numpy(*stream, *grid)
    mask = dropout_mask(*stream, shape)
    assert mask.dtype == torch.bool and mask.shape == shape
    np.testing.assert_array_equal(mask.numpy(), reference != 0)
    plain = _mask_in_torch(*stream, shape, torch.device("cpu"))
    assert torch.equal(plain, mask)
    elementwise = dropout_keep(*stream, *(torch.from_numpy(axis) for axis in grid))
    np.testing.assert_array_equal(elementwise.numpy(), reference)


def test_mask_is_the_same_on_any_number_of_threads_and_box_size(monkeypatch):
    shape, threads = (3, 4, 50, 40), torch.get_num_threads()
    expected = dropout_keep_numpy(0.3, 9, 8, 7, *np.indices(shape)) != 0
    try:
        for boxes in (1, 7, 100, 1 << 16):
            monkeypatch.setattr(mask_cpu, "BLOCKS_PER_BOX", boxes)
            for count in (1, 3):
                torch.set_num_threads(count)
                mask = dropout_mask(0.3, 9, 8, 7, shape)
                np.testing.assert_array_equal(mask.numpy(), expected)
    finally:
        torch.set_num_threads(threads)


def test_mask_reads_scalar_tensors():
    expected = dropout_mask(0.25, 3, 4, 5, (6, 7))
    tensors = (torch.tensor(0.25, dtype=torch.float64), *map(torch.tensor, (3, 4, 5)))
    assert torch.equal(dropout_mask(*tensors, (6, 7)), expected)
    assert torch.equal(_mask_in_torch(*tensors, (6, 7), torch.device("cpu")), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_mask_and_elementwise_are_the_same_bits_on_a_gpu():
    shape = (3, 4, 5, 30)
    expected = dropout_mask(0.2, 1, 2, 3, shape)
    scalars = (torch.tensor(0.2, dtype=torch.float64), *map(torch.tensor, (1, 2, 3)))
    on_device = [value.cuda() for value in scalars]
    assert torch.equal(dropout_mask(*on_device, shape, "cuda").cpu(), expected)
    grid = [torch.from_numpy(axis).cuda() for axis in np.indices(shape)]
    assert torch.equal((dropout_keep(*on_device, *grid) != 0).cpu(), expected)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_datafusion_function_equals_the_reference(count):
    rng = np.random.default_rng(count)
    indices = {f"i{n}": rng.integers(0, 1 << 32, 300) for n in range(count)}
    columns = {"step": rng.integers(0, 1 << 62, 300), **indices}
    context = SessionContext()
    register_functions(context)
    context.register_record_batches("t", [[pa.RecordBatch.from_pydict(columns)]])
    sql = f"SELECT dropout_keep_{count}(0.2, 1337, step, 3, {', '.join(indices)}) AS r FROM t"
    got = context.sql(sql).to_pandas()["r"].to_numpy()
    reference = dropout_keep_numpy(0.2, 1337, columns["step"], 3, *indices.values())
    np.testing.assert_array_equal(got, reference)


def test_datafusion_function_gives_null_for_null_and_takes_smaller_integers():
    context = SessionContext()
    register_functions(context)
    rows = pa.RecordBatch.from_pydict({"i": pa.array([1, None, 3], pa.int32())})
    context.register_record_batches("t", [[rows]])
    got = context.sql("SELECT dropout_keep_1(0.2, 1, 2, 3, i) AS r FROM t").to_pydict()["r"]
    assert got[1] is None
    assert [got[0], got[2]] == dropout_keep_numpy(0.2, 1, 2, 3, [1, 3]).tolist()


def test_nothing_is_dropped_at_zero():
    assert dropout_mask(0.0, 1, 2, 3, (50, 50)).all()
    assert (dropout_keep(0.0, 1, 2, 3, torch.arange(999)) == 1).all()
    assert (dropout_keep_numpy(0.0, 1, 2, 3, np.arange(999)) == 1).all()


@pytest.mark.parametrize("form", [dropout_keep, dropout_keep_numpy])
def test_arguments_out_of_range_are_named(form):
    for p in (1.0, -0.1, 1.5, float("nan")):
        with pytest.raises(DomainError, match="p must be in"):
            form(p, 1, 2, 3, 4)
    for name, values in (("seed", (-1, 0, 0)), ("step", (0, -1, 0)), ("site", (0, 0, 1 << 32))):
        with pytest.raises(DomainError, match=name):
            form(0.1, *values, 4)
    for count in (0, 5):
        with pytest.raises(ShapeError, match=f"{count} indices"):
            form(0.1, 1, 2, 3, *[0] * count)


def test_mask_arguments_out_of_range_are_named():
    with pytest.raises(DomainError, match="p must be in"):
        dropout_mask(1.0, 1, 2, 3, (4,))
    with pytest.raises(DomainError, match="seed"):
        dropout_mask(0.5, torch.tensor(-1), 2, 3, (4,))
    for shape in ((), (1,) * 5):
        with pytest.raises(ShapeError):
            dropout_mask(0.5, 1, 2, 3, shape)
    with pytest.raises(DomainError, match="index 1"):
        dropout_keep_numpy(0.5, 1, 2, 3, np.array([0, -1]))


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.9])
def test_mean_and_variance_of_the_kept_share(p):
    masks = dropout_mask(p, 11, 5, 2, (100, 64, 64)).double()
    n = masks.numel()
    # Five standard deviations of a binomial share; the shares of 100 slices vary as binomials do.
    assert abs(masks.mean().item() - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5
    ratio = masks.mean((1, 2)).var().item() / (p * (1 - p) / 4096)
    assert abs(ratio - 1) < 5 * (2 / 99) ** 0.5


BASE = {"p": 0.5, "seed": 11, "step": 5, "site": 2, "shape": (256, 1024)}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 12},
        {"seed": 11 + (1 << 32)},
        {"step": 6},
        {"step": 5 + (1 << 32)},
        {"site": 3},
        {"seed": 5, "step": 11},
        {"shape": (1, 256, 1024)},
    ],
    ids=str,
)
def test_streams_are_independent(change):
    a = dropout_mask(**BASE).double().flatten()
    b = dropout_mask(**{**BASE, **change}).double().flatten()
    correlation = torch.corrcoef(torch.stack([a, b]))[0, 1].item()
    assert abs(correlation) < 5 / a.numel() ** 0.5


@pytest.mark.parametrize("offset", [(0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (4, 0)])
def test_neighbours_are_independent(offset):
    mask = dropout_mask(**BASE).double()
    rows, columns = offset
    a = mask[: 256 - rows, : 1024 - columns].flatten()
    b = mask[rows:, columns:].flatten()
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 5 / a.numel() ** 0.5


def test_patterns_within_a_block_are_uniform():
    mask = dropout_mask(**BASE).reshape(-1, 4)
    patterns = (mask * torch.tensor([1, 2, 4, 8])).sum(1)
    counts = torch.bincount(patterns, minlength=16).double()
    expected = counts.sum() / 16
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    # Quantiles 1e-6 and 1 - 1e-6 of chi-square with 15 degrees of freedom.
    assert 1.2 < chi_square < 57.4


@pytest.mark.parametrize("shape", [(2, 3, 130, 130), (1, 1, 64, 64), (2, 2, 5, 7), (3, 1, 70, 66)])
def test_a_causal_mask_is_the_mask_where_it_matters(shape: tuple[int, ...]) -> None:
    whole = dropout_mask(0.2, 7, 3, 1, shape)
    causal = dropout_mask(0.2, 7, 3, 1, shape, causal=True)
    matters = torch.ones(shape[-2:], dtype=torch.bool).tril().expand(shape)
    assert causal.shape == whole.shape
    assert torch.equal(causal[matters], whole[matters])
