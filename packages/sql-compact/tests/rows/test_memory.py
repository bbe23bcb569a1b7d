"""What no memory could hold is refused with its size, before anything is allocated."""

import numpy as np
import pytest
from sql_compact import BudgetError, CompactContext, budget

GIB = 1 << 30
HUGE = {
    "cross join": "SELECT i, j, x.val * y.val AS p FROM x CROSS JOIN y",
    "of three": "SELECT a.i, b.i AS j, c.i AS k, a.val * b.val + c.val AS p FROM x a, x b, x c",
    "group by": "SELECT val, COUNT(*) AS n FROM g GROUP BY val",
    "distinct": "SELECT COUNT(DISTINCT val) AS n FROM g",
    "window": "SELECT val, COUNT(*) OVER (PARTITION BY val) AS n FROM g",
    "largest domain": "SELECT val, COUNT(*) AS n FROM h GROUP BY val",
}


def made(**options):
    ctx = CompactContext(**options)
    ctx.register("x", np.ones(10**7), dims=("i",))
    ctx.register("y", np.ones(2 * 10**7), dims=("j",))
    ctx.register("g", np.array([1, 2, 3]), dims=("i",), domain=10**15)
    ctx.register("h", np.array([1, 2, 3]), dims=("i",), domain=2**62)
    return ctx


@pytest.fixture(scope="module")
def contexts():
    return {"none": made(), "1 GiB": made(memory_budget=GIB)}


@pytest.mark.parametrize("limit", ["none", "1 GiB"])
@pytest.mark.parametrize("method", ["sql", "explain"])
@pytest.mark.parametrize("sql", HUGE.values(), ids=HUGE.keys())
def test_a_query_larger_than_the_machine(contexts, limit, method, sql):
    named = {"none": r"GiB that the device has in all", "1 GiB": "memory_budget=1 GiB"}[limit]
    with pytest.raises(BudgetError, match=rf"needs about \S+ GiB.*more than .*{named}"):
        getattr(contexts[limit], method)(sql)


def test_a_budget_larger_than_the_machine_is_the_machine(contexts):
    with pytest.raises(BudgetError, match="GiB that the device has in all"):
        made(memory_budget=1 << 80).sql(HUGE["cross join"])


def test_more_rows_than_can_be_counted(contexts):
    with pytest.raises(BudgetError, match=r"1e\+35 rows, more than BIGINT can count"):
        contexts["none"].sql("SELECT COUNT(*) AS c FROM x a, x b, x c, x d, x e")


@pytest.mark.parametrize("target", ["to_arrow", "to_pandas", "to_dataset", "to_torch"])
def test_rows_that_no_memory_holds(contexts, target):
    # Coordinates alone need no memory until they are written out.
    result = contexts["none"].sql("SELECT x.i, y.j FROM x CROSS JOIN y", engine="compact")
    message = r"200,000,000,000,000 rows of 2 columns take about \S+ GiB"
    with pytest.raises(BudgetError, match=message):
        getattr(result, target)()


def test_few_rows_of_a_large_grid_are_written_out():
    ctx = CompactContext()
    ctx.register("x", np.arange(3000.0), dims=("i",))
    result = ctx.sql("SELECT a.i, b.i AS j FROM x a, x b WHERE a.val = 7 AND b.val = 9")
    assert result.to_arrow().to_pylist() == [{"i": 7, "j": 9}]


def test_rows_of_a_table_that_no_memory_holds(contexts):
    import xarray as xr

    ctx = CompactContext()
    wide = {"p": ("i", np.ones(10**7)), "q": ("j", np.ones(10**7))}
    ctx.register("x", xr.Dataset({**wide, "r": (("i", "j"), np.broadcast_to(1.0, (10**7,) * 2))}))
    with pytest.raises(BudgetError, match=r"table 'x' as rows: 100,000,000,000,000 rows"):
        ctx.sql("SELECT MEDIAN(r) AS m FROM x", engine="rows")


@pytest.mark.parametrize(
    "failure", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_machine_that_has_no_more_to_give(failure):
    memory = budget.Memory(8, 16, (1, 2))
    with (
        pytest.raises(BudgetError, match=r"needs about 24 B.*has not that much left"),
        budget.allocations_checked(memory, "cpu"),
    ):
        raise failure
