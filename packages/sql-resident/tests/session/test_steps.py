"""Steps: one forward, counters, accumulation, averages, shapes, what may change on the way."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from sql_compact import ShapeError, StatementTrace, table_of_array
from sql_resident import AdamW, Constant, Counters, SessionError, WarmupCosine


def count(text: str, what: str) -> int:
    return len(re.findall(rf"= {what}\b", text))


def test_loss_and_gradients_share_one_forward(mlp):
    session = mlp.session(optimizer=AdamW())
    layouts = [
        table_of_array(n, a, mlp.dims[n], "val", None, None) for n, a in mlp.weights().items()
    ]
    layouts += [given.layout(name) for name, given in mlp.batch.items()]
    ctes, final = mlp.sql.rsplit("SELECT", 1)
    sql = f"{ctes}, loss AS (SELECT {final}) SELECT * FROM loss"
    forward = StatementTrace(layouts, sql, ["loss"]).program([("loss", "loss")]).explain()
    step = session.explain()
    for function in ("exp", "ln", "tanh", "gather"):
        assert count(step, function) == count(forward, function) > 0, function
    # Backward: both factors of the second product, the weights of the first.
    assert count(forward, "contract") == 2
    assert count(step, "contract") == 2 + 3


def test_the_counters_of_a_hundred_steady_steps(mlp):
    session = mlp.session(optimizer=AdamW(), clip_norm=1.0)
    session.step(mlp.batch_of(0))
    before = session.counters
    assert before.compilations == 1
    for position in range(1, 101):
        session.step(mlp.batch_of(position))
    after = session.counters
    batch = mlp.batch_of(0)
    uploaded = sum(array.nbytes for array in batch.values()) + 3 * 8  # step, seed, lr
    assert after == Counters(
        compilations=1,
        steps=101,
        skipped=0,
        arrays_exported=0,
        bytes_exported=0,
        scalars_read=before.scalars_read + 300,
        bytes_uploaded=before.bytes_uploaded + 100 * uploaded,
    )


def test_exports_are_counted(linear):
    session = linear.session(optimizer=AdamW())
    session.state()
    assert session.counters.arrays_exported == 3
    assert session.counters.bytes_exported == 3 * 3 * 8


def test_two_runs_give_the_same_bits(embedding, same_bits):
    runs = []
    for _ in range(2):
        session = embedding.session(
            optimizer=AdamW(), hyper={"dropout": 0.3}, precision="float32", clip_norm=1.0
        )
        losses = [session.step(embedding.batch_of(i)).loss for i in range(5)]
        runs.append((losses, session.state()))
    assert runs[0][0] == runs[1][0]
    assert same_bits(runs[0][1], runs[1][1])


def test_dropout_masks_depend_on_seed_and_step_alone(embedding):
    batch = embedding.batch_of(0)

    def loss(**options) -> float:
        options = {"learning_rate": 0.0, "hyper": {"dropout": 0.5}, **options}
        return embedding.session(**options).step(batch).loss

    assert loss(seed=1) == loss(seed=1)
    assert loss(seed=1) != loss(seed=2)
    session = embedding.session(learning_rate=0.0, hyper={"dropout": 0.5}, seed=1)
    assert session.step(batch).loss == loss(seed=1)
    assert session.step(batch).loss != loss(seed=1)


# --- accumulation -----------------------------------------------------------------------


def split(batch, sizes):
    edges = np.cumsum([0, *sizes])
    return [
        {n: a[start:stop] for n, a in batch.items()} for start, stop in itertools.pairwise(edges)
    ]


def close(left, right, rel):
    for name, array in left.items():
        np.testing.assert_allclose(array, right[name], rtol=rel, atol=rel)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_micro_batches_equal_one_large_batch(dtype, mlp):
    options = {"optimizer": AdamW(), "clip_norm": 0.3, "precision": dtype, "ema_decay": 0.5}
    whole = mlp.session(**options)
    parts = mlp.session(
        **options, batch_shapes=[{"x": (2, 5), "labels": (2,)}, {"x": (1, 5), "labels": (1,)}]
    )
    rel = 1e-12 if dtype == "float64" else 1e-5
    for position in range(3):
        batch = mlp.batch_of(position)
        micro = split(batch, [2, 1, 2, 1])
        report = parts.step(micro, weights=[2, 1, 2, 1])
        expected = whole.step(batch)
        assert report.loss == pytest.approx(expected.loss, rel=rel)
        assert report.grad_norm == pytest.approx(expected.grad_norm, rel=rel)
        assert report.step == expected.step
    close(parts.state(), whole.state(), rel)
    assert parts.counters.compilations == 3  # two shapes that add, one update
    assert parts.counters.steps == 3


def test_without_weights_micro_batches_count_alike(linear):
    whole, parts = linear.session(), linear.session(batch_shapes=[{"x": (4, 3), "y": (4,)}])
    batch = linear.batch_of(0)
    parts.step(split(batch, [4, 4]))
    whole.step(batch)
    close(parts.state(), whole.state(), 1e-13)


def test_a_list_of_one_is_the_batch(linear, same_bits):
    one, listed = linear.session(), linear.session()
    assert one.step(linear.batch_of(0)) == listed.step([linear.batch_of(0)], weights=[17])
    assert same_bits(one.state(), listed.state())


def test_micro_batches_have_masks_of_their_own(embedding):
    session = embedding.session(hyper={"dropout": 0.5}, learning_rate=0.0)
    batch = embedding.batch_of(0)
    assert session.step([batch, batch]).loss != pytest.approx(session.step(batch).loss, rel=1e-6)
    first = session.step([batch, batch]).loss
    again = embedding.session(hyper={"dropout": 0.5}, learning_rate=0.0)
    for _ in range(2):
        again.step(batch)
    assert again.step([batch, batch]).loss == first


@pytest.mark.parametrize(
    ("batches", "weights", "message"),
    [
        (0, None, "the list of micro-batches is empty"),
        (2, [1.0], "weights: 1 for 2 micro-batches"),
        (2, [1.0, 0.0], "that of micro-batch 1 is 0.0; it must be a positive number"),
        (2, [1.0, float("nan")], "that of micro-batch 1 is nan"),
    ],
)
def test_wrong_micro_batches_are_refused(batches, weights, message, linear):
    with pytest.raises(SessionError, match=message):
        linear.session().step([linear.batch_of(i) for i in range(batches)], weights=weights)


def test_weights_without_micro_batches_are_refused(linear):
    with pytest.raises(SessionError, match="for a list of micro-batches"):
        linear.session().step(linear.batch_of(0), weights=[1.0])


# --- averages ---------------------------------------------------------------------------


def test_the_average_is_exponential_and_apart_from_the_weights(linear, same_bits):
    averaged, plain = linear.session(ema_decay=0.8), linear.session()
    expected = linear.weights()["w"]
    for position in range(4):
        averaged.step(linear.batch_of(position))
        plain.step(linear.batch_of(position))
        expected = 0.8 * expected + (1 - 0.8) * plain.weights()["w"]
    assert same_bits(averaged.weights(), plain.weights())
    np.testing.assert_allclose(averaged.weights(ema=True)["w"], expected, rtol=1e-14)
    batch = linear.batch_of(9)
    of_average = linear.torch_loss({"w": torch.from_numpy(expected)}, batch).item()
    assert averaged.evaluate(batch, ema=True) == pytest.approx(of_average, rel=1e-12)
    assert averaged.evaluate(batch) == plain.evaluate(batch)
    np.testing.assert_allclose(averaged.dataset(ema=True)["w"], expected, rtol=1e-14)


# --- what may change between steps -------------------------------------------------------


def test_changing_scalars_takes_effect_without_compiling(embedding):
    session = embedding.session(hyper={"dropout": 0.0})
    batch = embedding.batch_of(0)
    session.step(batch)
    session.learning_rate = 0.0
    quiet = session.step(batch).loss
    session.set_hyper(dropout=0.5)
    assert session.hyper == {"dropout": 0.5}
    noisy = session.step(batch)
    assert noisy.loss != quiet
    session.seed = 11
    assert session.step(batch).loss != noisy.loss
    session.learning_rate = WarmupCosine(peak=1.0, floor=0.1, warmup=10, total=20)
    assert session.step(batch).learning_rate == pytest.approx(5 / 11)
    assert session.counters.compilations == 1


@pytest.mark.slow
def test_changing_scalars_or_tokens_does_not_recompile(embedding):
    session = embedding.session(hyper={"dropout": 0.0}, compile=True, precision="float32")
    eager = embedding.session(hyper={"dropout": 0.0}, precision="float32")
    compiled = []
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for position in range(6):
        for each in (session, eager):
            each.learning_rate = 0.1 / (1 + position)
            each.seed = position
            each.set_hyper(dropout=0.1 * position)
        batch = embedding.batch_of(position)
        assert session.step(batch).loss == pytest.approx(eager.step(batch).loss, rel=1e-5)
        compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert compiled == [1] * 6
    assert session.counters.compilations == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.set_hyper(droput=0.1), "there is no 'droput'; the session has"),
        (lambda s: s.set_hyper(dropout=float("nan")), "dropout is nan; it must be finite"),
        (lambda s: s.set_hyper(lr=0.1), "'lr' is set by the session"),
        (lambda s: setattr(s, "seed", -1), "seed is -1; it must be an integer from 0"),
        (lambda s: setattr(s, "learning_rate", -0.1), "lr is -0.1"),
    ],
)
def test_wrong_changes_are_refused(change, message, embedding):
    session = embedding.session()
    before = (session.hyper, session.seed, session.learning_rate)
    with pytest.raises(SessionError, match=message):
        change(session)
    assert before == (session.hyper, session.seed, session.learning_rate)


# --- shapes -----------------------------------------------------------------------------


def test_a_declared_second_shape_is_a_program_of_its_own(linear):
    session, other = (linear.session(batch_shapes=[{"x": (3, 3), "y": (3,)}]) for _ in range(2))
    small = linear.batch_of(0, rows=3)
    weight = torch.from_numpy(linear.weights()["w"]).requires_grad_()
    linear.torch_loss({"w": weight}, small).backward()
    np.testing.assert_allclose(session.gradients(small)["w"], weight.grad.numpy(), rtol=1e-13)
    session.step(small)
    session.step(linear.batch_of(1))
    session.step(small)
    assert session.counters.compilations == 2
    assert session.evaluate(small) < other.evaluate(small)


def test_an_undeclared_shape_is_refused(linear):
    session = linear.session(batch_shapes=[{"x": (3, 3), "y": (3,)}])
    with pytest.raises(ShapeError, match=r"the shapes are {'x': \(4, 3\), 'y': \(4,\)}; declared"):
        session.step(linear.batch_of(0, rows=4))
    with pytest.raises(ShapeError, match=r"table 'x', column 'val': expected shape \(b: 8, i: 3\)"):
        linear.session().step(linear.batch_of(0, rows=4))


def test_declared_shapes_must_fit_the_inputs(linear):
    with pytest.raises(SessionError, match="there is no batch input 'z'"):
        linear.session(batch_shapes=[{"z": (3,)}])
    with pytest.raises(SessionError, match="declared twice"):
        linear.session(batch_shapes=[{"x": (8, 3)}])
    with pytest.raises(ShapeError, match="dims"):
        linear.session(batch_shapes=[{"y": (8, 1)}])


# --- views ------------------------------------------------------------------------------


def test_queries_read_weights_and_slots(mlp):
    session = mlp.session(optimizer=AdamW(), ema_decay=0.9)
    session.step(mlp.batch_of(0))
    norms = session.sql("SELECT j, SQRT(SUM(val * val)) AS norm FROM w1 GROUP BY j").to_xarray()
    state = session.state()
    np.testing.assert_allclose(norms, np.linalg.norm(state["w1"], axis=0), rtol=1e-14)
    moment = session.sql("SELECT SUM(val) AS val FROM w2_v").to_pandas()["val"][0]
    assert moment == pytest.approx(state["w2.v"].sum(), rel=1e-13)
    session.step(mlp.batch_of(1))
    later = session.sql("SELECT j, SQRT(SUM(val * val)) AS norm FROM w1 GROUP BY j").to_xarray()
    assert not np.array_equal(norms, later)


def test_a_dataset_shares_dims_where_tables_agree(mlp):
    dataset = mlp.session().dataset()
    assert {n: a.dims for n, a in dataset.items()} == mlp.dims
    assert dataset.sizes == {"i": 5, "j": 4, "k": 3}


def test_memory_counts_state_and_estimates_the_step(mlp):
    session = mlp.session(optimizer=AdamW())
    use = session.memory()
    assert use.state == 2 * 3 * sum(a.nbytes for a in mlp.weights().values())
    inputs = sum(a.nbytes for a in mlp.batch_of(0).values())
    assert inputs < use.step < 40 * (inputs + use.state)
    assert use.total == use.state + use.step


def test_setting_weights_starts_anew(mlp, same_bits):
    session = mlp.session(optimizer=AdamW(), ema_decay=0.9)
    weights = {n: a + 0.25 for n, a in mlp.weights().items()}
    session.step(mlp.batch_of(0))
    session.set_weights(weights)
    parameters = {n: a + 0.25 for n, a in mlp.parameters().items()}
    fresh = mlp.session(optimizer=AdamW(), ema_decay=0.9, parameters=parameters)
    assert session.step_count == session.data_position == 0
    assert same_bits(session.state(), fresh.state())
    assert session.step(mlp.batch_of(1)) == fresh.step(mlp.batch_of(1))


def test_a_constant_rate_is_a_schedule(linear):
    assert linear.session(learning_rate=0.25).learning_rate == Constant(0.25)
