"""The native contenders train, and the benchmark measures what it says."""

import json
import time

import numpy as np
import pytest
import torch
from sql_oracle import BatchError, GPTConfig, OracleError, precision_policy, write_json
from sql_oracle.batches import synthetic_batches
from sql_oracle.bench import (
    BenchSettings,
    SessionContender,
    Timing,
    bench,
    bench_record,
    bench_table,
)
from sql_oracle.flops import device_peak, training_flops
from sql_oracle.native import (
    NativeGPT,
    NativeGraphed,
    NativeLoop,
    TrainingRecipe,
    adamw,
    native_contenders,
    native_model,
)
from sql_oracle.reference import GPT

CONFIG = GPTConfig(layers=1, heads=2, width=8, context=6, vocabulary=11)


def recipe(precision="float32", **changes) -> TrainingRecipe:
    return TrainingRecipe(CONFIG, precision_policy(precision), "cpu", **changes)


def settings(**changes) -> BenchSettings:
    given = {"rounds": 3, "block": 2, **changes}
    return BenchSettings(CONFIG, 2, "float32", "cpu", **given)


class Sleeper:
    """A contender whose step takes a known time."""

    upload_timed = False

    def __init__(self, name, seconds, log=None):
        self.name, self.seconds, self.log = name, seconds, [] if log is None else log

    def setup(self, batch):
        self.log.append((self.name, "setup"))

    def stage(self, batch):
        # Staging is slow and must not be timed.
        time.sleep(0.02)

    def step(self):
        self.log.append((self.name, "step"))
        time.sleep(self.seconds)
        return 1.5

    def counters(self):
        return {"steps": len(self.log)}


def test_native_and_reference_are_the_same_model():
    ours, theirs = GPT(CONFIG).double(), NativeGPT(CONFIG, dropout=0.3).double().eval()
    ours.initialise(2)
    weights = {name.replace("transformer.", ""): p for name, p in ours.named_parameters()}
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            source = name if name in weights else name.replace("c_", "mlp.c_")
            parameter.copy_(weights[source])
    batch = next(synthetic_batches(CONFIG, 3, 1, 0))
    tokens, targets = (torch.from_numpy(batch[name]) for name in ("tokens", "targets"))
    found, expected = theirs(tokens, targets).item(), ours(tokens, targets).item()
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("precision", ["float64", "float32", "tf32", "bfloat16"])
def test_the_eager_loop_learns(precision):
    loop = NativeLoop("native eager", recipe(precision, dropout=0.1, learning_rate=1e-2))
    batch = next(synthetic_batches(CONFIG, 4, 1, 0))
    loop.setup(batch)
    losses = [loop.step() for _ in range(60)]
    assert np.mean(losses[-5:]) < 0.9 * losses[0]


def test_dropout_is_on_while_training():
    model = native_model(recipe(dropout=0.5)).train()
    batch = next(synthetic_batches(CONFIG, 2, 1, 0))
    tokens, targets = (torch.from_numpy(batch[name]) for name in ("tokens", "targets"))
    losses = {model(tokens, targets).item() for _ in range(4)}
    assert len(losses) == 4
    model.eval()
    assert len({model(tokens, targets).item() for _ in range(3)}) == 1


def test_only_matrices_decay():
    model = native_model(recipe())
    groups = adamw(recipe(), model, fused=False).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert all(p.ndim >= 2 for p in groups[0]["params"])
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_captured_step_reads_its_learning_rate_from_memory():
    optimizer = adamw(recipe(), native_model(recipe()), fused=True, capturable=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert all(
        isinstance(rate, torch.Tensor) and rate.item() == pytest.approx(1e-3) for rate in rates
    )


def test_a_graph_needs_cuda():
    contender = NativeGraphed("native graphed", recipe(), compiled=True)
    with pytest.raises(OracleError, match="CUDA"):
        contender.setup(next(synthetic_batches(CONFIG, 2, 1, 0)))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_the_graphed_step_learns_and_redraws_its_dropout(precision):
    cuda = TrainingRecipe(
        GPTConfig(layers=2, heads=2, width=64, context=32), precision_policy(precision), "cuda"
    )
    contender = NativeGraphed("native graphed", cuda, compiled=True)
    batch = next(synthetic_batches(cuda.config, 4, 1, 0))
    contender.setup(batch)
    contender.stage(batch)
    losses = [contender.step() for _ in range(100)]
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    assert len(set(losses)) > 90
    with pytest.raises(BatchError, match="captured"):
        contender.stage({name: array[:2] for name, array in batch.items()})


def test_contenders_of_a_cpu():
    names = [contender.name for contender in native_contenders(recipe(), compiled=True)]
    assert names == ["native eager", "native compiled"]
    assert len(native_contenders(recipe(), compiled=False)) == 1


def test_missing_tokens_are_named():
    with pytest.raises(BatchError, match="targets"):
        NativeLoop("x", recipe()).stage({"tokens": np.zeros((1, 6), np.int64)})


def timing(*seconds: tuple[float, ...]) -> Timing:
    return Timing("x", seconds, 0.0, None, 0.0, False, {})


def test_medians_and_ratios():
    slow, fast = timing((4.0, 6.0, 5.0), (8.0, 8.0, 8.0)), timing((1.0, 1.0, 1.0), (2.0, 4.0, 2.0))
    assert (slow.median, fast.median) == (7.0, 1.5)
    assert slow.quantile(0.0) == 4.0
    # Of the medians of all, then the least and the largest of a round's medians.
    assert slow.ratio(fast) == (7.0 / 1.5, 4.0, 5.0)
    assert fast.ratio(fast) == (1.0, 1.0, 1.0)


def test_every_timed_step_is_kept():
    result = bench([Sleeper("a", 0.002), Sleeper("b", 0.0)], settings(block=3))
    for one in result.timings:
        assert [len(block) for block in one.seconds] == [3, 3, 3]
        assert result.tokens_per_second(one) == pytest.approx(2 * 6 / one.median)
    # A sleep never ends early.
    assert min(map(min, result.timings[0].seconds)) >= 0.002


def test_contenders_take_turns_in_rotating_order():
    log: list[tuple[str, str]] = []
    contenders = [Sleeper(name, 0.0, log) for name in "abc"]
    bench(contenders, settings(rounds=2, block=1))
    # Setting up: a set-up and two steps each; then blocks of one untimed and one timed step.
    assert [name for name, what in log if what == "setup"] == ["a", "b", "c"]
    turns = [name for name, what in log if what == "step"][6:]
    assert "".join(turns) == "aabbcc" + "bbccaa"


def test_a_contender_that_cannot_run_is_left_out_with_the_reason():
    graphed = NativeGraphed("native graphed", recipe(), compiled=True)
    result = bench([Sleeper("a", 0.0), graphed], settings(rounds=1))
    assert [timing.name for timing in result.timings] == ["a"]
    assert "left out: native graphed (a CUDA graph needs" in bench_table(result)
    with pytest.raises(OracleError, match="no contender"):
        bench([graphed], settings(rounds=1))
    with pytest.raises(OracleError, match="no contender"):
        bench([], settings())


def test_a_session_as_a_contender(gpt_case):
    made = []

    def build():
        made.append(gpt_case.session())
        return made[-1]

    contender = SessionContender("SQL eager", build)
    uploading = SessionContender("uploading", lambda: contender.session, staged=False)
    given = BenchSettings(gpt_case.config, gpt_case.batch_size, "float64", "cpu", 2, 2)
    result = bench([contender, uploading, NativeLoop("native eager", recipe())], given)
    names = [timing.name for timing in result.timings]
    assert names == ["SQL eager", "uploading", "native eager"]
    assert len(made) == 1
    assert made[0].step_count == 2 * (1 + 2 + 2 * (2 + 1))
    can_stage = hasattr(made[0], "stage")
    assert [t.upload_timed for t in result.timings] == [not can_stage, True, False]
    text = bench_table(result, "native eager")
    assert "SQL eager" in text
    assert "Uploads" in text
    assert "ratios to native eager" in text


def test_the_record_holds_every_timed_step(tmp_path):
    result = bench([Sleeper("a", 0.0), Sleeper("b", 0.0)], settings())
    write_json(tmp_path / "bench.json", bench_record(result, "b", {"dropout": 0.2}))
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["baseline"] == "b"
    assert record["parameters"] == CONFIG.parameters
    assert [len(c["seconds"]) for c in record["contenders"]] == [3, 3]
    assert record["contenders"][1]["ratio"] == 1.0
    assert record["contenders"][0]["counters"]["steps"] > 0
    assert record["settings"] == {"dropout": 0.2}
    with pytest.raises(OracleError, match="no contender 'c'"):
        bench_table(result, "c")


@pytest.mark.parametrize("name", ["batch_size", "rounds", "block"])
def test_settings_must_be_positive(name):
    given = {"batch_size": 1, "rounds": 1, "block": 1, name: 0}
    with pytest.raises(OracleError, match=name):
        BenchSettings(CONFIG, precision="float32", device="cpu", **given)


def test_operations_of_the_real_size():
    # 6 layers of 12 * 384^2 + 2 * 384 weights, the output layer, the last norm; no positions.
    weights = 6 * (12 * 384**2 + 2 * 384) + 65 * 384 + 384
    tokens = 12 * 256
    expected = (6 * weights + 12 * 6 * 384 * 256) * tokens
    assert training_flops(GPTConfig(), 12) == expected


def test_peaks():
    peak = device_peak("NVIDIA H200", "bfloat16")
    assert peak is not None
    assert peak.flops == 989.4e12
    assert device_peak("CPU", "float32") is None
