"""A user's two-layer model trained in SQL, judged by the same model written with torch.nn."""

import numpy as np
import pytest
import xarray as xr
from sql_oracle import AdamWOptions, Mapping, MappingError, TensorMap, check, decay_all
from sql_resident import AdamW, BatchInput, TrainingSession
from torch import nn

SQL = """
WITH hidden AS (
    SELECT x.b, w.j, SUM(x.val * w.val) AS val
    FROM x JOIN w1 w ON x.i = w.i GROUP BY x.b, w.j
),
biased AS (
    SELECT h.b, h.j, h.val + b1.val AS val FROM hidden h JOIN b1 ON h.j = b1.j
),
activated AS (
    SELECT b, j, 0.5 * val * (1.0 + erf(val / sqrt(2.0))) AS val FROM biased
),
output AS (
    SELECT a.b, w.k, SUM(a.val * w.val) AS val
    FROM activated a JOIN w2 w ON a.j = w.j GROUP BY a.b, w.k
),
miss AS (
    SELECT o.b, o.k, o.val - y.val AS val FROM output o JOIN y ON o.b = y.b AND o.k = y.k
)
SELECT AVG(val * val) AS loss FROM miss
"""

INPUTS, HIDDEN, OUTPUTS, ROWS = 3, 5, 2, 4


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, HIDDEN)
        self.second = nn.Linear(HIDDEN, OUTPUTS, bias=False)

    def forward(self, x, y):
        return nn.functional.mse_loss(self.second(nn.functional.gelu(self.first(x))), y)


MAPPING = {
    "w1": TensorMap("first.weight", axes=(1, 0)),
    "b1": "first.bias",
    "w2": TensorMap("second.weight", axes=(1, 0)),
}


def session(sql: str = SQL, **options) -> TrainingSession:
    generator = np.random.default_rng(0)

    def table(**sizes: int) -> xr.DataArray:
        coords = {dim: np.arange(size) for dim, size in sizes.items()}
        return xr.DataArray(
            generator.standard_normal(tuple(sizes.values())), coords, tuple(sizes), name="val"
        )

    given = {
        "optimizer": AdamW(betas=(0.9, 0.99), eps=1e-8, weight_decay=0.01),
        "clip_norm": 0.05,
        "learning_rate": 1e-2,
        "precision": "float64",
        **options,
    }
    return TrainingSession(
        loss=sql,
        parameters={
            "w1": table(i=INPUTS, j=HIDDEN),
            "b1": table(j=HIDDEN),
            "w2": table(j=HIDDEN, k=OUTPUTS),
        },
        batch={
            "x": BatchInput(dims=("b", "i"), shape=(ROWS, INPUTS), column="val", domain=None),
            "y": BatchInput(dims=("b", "k"), shape=(ROWS, OUTPUTS), column="val", domain=None),
        },
        seed=1,
        **given,
    )


def judge(trained: TrainingSession, mapping: Mapping | None = None, **options):
    generator = np.random.default_rng(1)
    steps = options.pop("steps", 4)
    batches = [
        {
            "x": generator.standard_normal((ROWS, INPUTS)),
            "y": generator.standard_normal((ROWS, OUTPUTS)),
        }
        for _ in range(steps)
    ]
    given = {"precision": "float64", **options}
    return check(
        trained,
        TwoLayers(),
        mapping or Mapping(MAPPING),
        batches,
        optimizer=AdamWOptions((0.9, 0.99), 1e-8, decay_all(0.01)),
        learning_rate=1e-2,
        clip_norm=0.05,
        **given,
    )


def test_the_model_in_sql_agrees_with_the_module():
    result = judge(session())
    assert result.passed, result.first_breach and result.first_breach.describe()


def test_in_float32():
    result = judge(session(precision="float32"), precision="float32")
    assert result.passed, result.first_breach and result.first_breach.describe()


def test_a_session_with_updates_behind_it():
    trained = session()
    judge(trained)
    result = judge(trained)
    assert result.passed
    assert {c.step for c in result.comparisons} == {4, 5, 6, 7}


SQL_FAULTS = [
    ("sqrt(2.0)", "sqrt(2.01)", "loss"),
    ("AVG(val * val)", "1.001 * AVG(val * val)", "loss"),
    ("h.val + b1.val", "h.val - b1.val", "loss"),
    ("h.val + b1.val", "h.val + ddx_stop_gradient(b1.val)", "gradient of b1"),
]


@pytest.mark.parametrize(("old", "new", "first"), SQL_FAULTS)
def test_a_changed_line_of_sql_is_caught(old, new, first):
    assert old in SQL
    breach = judge(session(SQL.replace(old, new)), steps=1).first_breach
    assert breach is not None
    assert breach.name == first


OPTION_FAULTS = [
    ({"optimizer": AdamW(betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01)}, "moment of w1.v"),
    ({"optimizer": AdamW(betas=(0.8, 0.99), eps=1e-8, weight_decay=0.01)}, "moment of w1.m"),
    ({"optimizer": AdamW(betas=(0.9, 0.99), eps=1e-6, weight_decay=0.01)}, "weight of w1"),
    (
        {
            "optimizer": AdamW(
                betas=(0.9, 0.99), eps=1e-8, weight_decay={"w1": 0.01, "b1": 0.0, "w2": 0.01}
            )
        },
        "weight of b1",
    ),
    ({"clip_norm": None}, "moment of w1.m"),
    ({"learning_rate": 1.001e-2}, "learning_rate"),
]


@pytest.mark.parametrize(("options", "first"), OPTION_FAULTS)
def test_a_changed_option_is_caught(options, first):
    breach = judge(session(**options), steps=1).first_breach
    assert breach is not None
    assert breach.name == first


def test_a_table_left_out_is_named():
    with pytest.raises(MappingError) as caught:
        judge(session(), Mapping({name: MAPPING[name] for name in ("w1", "b1")}))
    assert caught.value.unmapped_tables == ("w2",)
    assert caught.value.unmapped_parameters == ("second.weight",)
