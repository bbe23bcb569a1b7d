"""The GPT in SQL against recorded runs of the original nanoGPT."""

import numpy as np
import pytest
import sql_resident
import xarray
from sql_oracle import GPT, difference, gpt_mapping
from sql_oracle.mapping import GPT_DIMS
from sql_oracle.recorded import (
    BETAS,
    CLIP_NORM,
    EPS,
    FULL_SUMMARY,
    SMALL_RUN,
    WEIGHT_DECAY,
    Summary,
    read_run,
)
from sql_resident import gpt

SLOTS = {"weight": "", "exp_avg": ".m", "exp_avg_sq": ".v"}


def session_for(run, precision):
    sizes = run.config
    config = gpt.GPTConfig(
        sizes.layers, sizes.heads, sizes.width, sizes.context, sizes.vocabulary, 0.0
    )
    tokens = sql_resident.BatchInput(
        ("b", "t"), (run.batch_size, sizes.context), "token", sizes.vocabulary
    )
    decay = {name: WEIGHT_DECAY if gpt.is_matrix(name) else 0.0 for name in GPT_DIMS}
    return sql_resident.TrainingSession(
        loss=gpt.loss_sql(config),
        parameters={
            name: xarray.DataArray(array, dims=GPT_DIMS[name])
            for name, array in run.initial_tables().items()
        },
        batch={"tokens": tokens, "targets": tokens},
        optimizer=sql_resident.AdamW(betas=BETAS, eps=EPS, weight_decay=decay),
        clip_norm=CLIP_NORM,
        learning_rate=sql_resident.WarmupCosine(peak=1e-3, floor=1e-4, warmup=100, total=5000),
        hyper={"dropout": 0.0},
        precision=precision,
    )


def worst_errors(run, session, steps):
    """Largest relative error by kind of array, over these steps."""
    mapping, module = gpt_mapping(run.config), GPT(run.config)
    worst = {}
    for step in run.steps[:steps]:
        found = {"grad": mapping.to_parameters(session.gradients(step.batch), module)}
        report = session.step(step.batch)
        state = session.state()
        for kind, suffix in SLOTS.items():
            tables = {name: state[f"{name}{suffix}"] for name in GPT_DIMS}
            found[kind] = mapping.to_parameters(tables, module)
        worst["loss"] = max(worst.get("loss", 0.0), abs(report.loss / step.loss - 1.0))
        norm = abs(report.grad_norm / step.grad_norm - 1.0)
        worst["grad_norm"] = max(worst.get("grad_norm", 0.0), norm)
        for kind, arrays in found.items():
            for name, recorded in step.arrays[kind].items():
                array = np.asarray(arrays[name], dtype=np.float64)
                if isinstance(recorded, Summary):
                    error = recorded.error(array)
                else:
                    error = difference(array, recorded).norm
                worst[kind] = max(worst.get(kind, 0.0), error)
    return worst


def test_the_small_run_in_float64(recorded):
    run = read_run(recorded / SMALL_RUN)
    worst = worst_errors(run, session_for(run, "float64"), len(run.steps))
    assert max(worst.values()) < 1e-10, worst


@pytest.mark.slow
@pytest.mark.parametrize("precision, limit", [("float64", 1e-9), ("float32", 1e-4)])
def test_the_full_size_summary(recorded, precision, limit):
    run = read_run(recorded / FULL_SUMMARY)
    worst = worst_errors(run, session_for(run, precision), len(run.steps))
    print(precision, worst)
    assert max(worst.values()) < limit, worst
