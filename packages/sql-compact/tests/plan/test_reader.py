"""Plans are read as they mean, and what a plan does not say is refused."""

import pyarrow as pa
import pytest
from sql_compact import UnknownColumn, UnknownTable, UnsupportedSQL
from sql_compact.plan import nodes as n
from sql_compact.plan.planner import Planner
from sql_compact.plan.reader import read_plan


@pytest.fixture(scope="module")
def planner():
    planner = Planner()
    planner.add_table("x", pa.schema([("b", pa.int64()), ("val", pa.float64())]))
    planner.add_table("y", pa.schema([("b", pa.int64()), ("flag", pa.bool_())]))
    return planner


def read(planner, sql):
    planned = planner.plan(sql)
    return read_plan(planned.message, planned.has_not_in)


def find(node, kind):
    """Every part of a plan of one class."""
    if isinstance(node, kind):
        yield node
    if isinstance(node, tuple):
        for item in node:
            yield from find(item, kind)
    elif hasattr(node, "__dataclass_fields__"):
        for name in node.__dataclass_fields__:
            yield from find(getattr(node, name), kind)


def test_literal_rows_are_read_from_the_field_that_datafusion_writes(planner):
    (values,) = find(read(planner, "SELECT * FROM (VALUES (1, 2.5), (3, NULL)) q"), n.Values)
    rows = [[literal.value for literal in row] for row in values.rows]
    assert rows == [[1, 2.5], [3, None]]


def test_one_row_and_no_row_are_told_apart(planner):
    (one,) = find(read(planner, "SELECT 1 AS a"), n.Values)
    (none,) = find(read(planner, "SELECT b FROM x WHERE false"), n.Values)
    assert (len(one.rows), len(none.rows)) == (1, 0)


def test_case_of_an_operand_compares_it(planner):
    (case,) = find(read(planner, "SELECT CASE b WHEN 1 THEN 2 ELSE 3 END AS c FROM x"), n.Case)
    ((test, _),) = case.branches
    assert isinstance(test, n.Call) and test.name == "equal"


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT x.b FROM x JOIN y ON x.b = y.b", n.JoinKind.INNER),
        ("SELECT x.b, y.b AS c FROM x LEFT JOIN y ON x.b = y.b", n.JoinKind.LEFT),
        ("SELECT x.b, y.b AS c FROM x FULL JOIN y ON x.b = y.b", n.JoinKind.FULL),
        ("SELECT b FROM x WHERE EXISTS (SELECT 1 FROM y WHERE y.b = x.b)", n.JoinKind.LEFT_SEMI),
        ("SELECT b FROM x WHERE b NOT IN (SELECT b FROM y)", n.JoinKind.LEFT_ANTI),
        ("SELECT b FROM x WHERE b IN (SELECT b FROM y) OR val > 0", n.JoinKind.LEFT_MARK),
    ],
)
def test_joins_keep_their_kind(planner, sql, kind):
    (join,) = find(read(planner, sql), n.Join)
    assert join.kind is kind
    assert join.may_be_not_in is ("NOT IN" in sql)


def test_what_a_window_loses_is_refused(planner):
    with pytest.raises(UnsupportedSQL, match=r"FILTER \(\.\.\.\) OVER"):
        planner.plan("SELECT SUM(val) FILTER (WHERE b = 1) OVER () AS s FROM x")
    # In a column's name or a GROUP BY the words mean nothing here.
    planner.plan('SELECT SUM(val) FILTER (WHERE b = 1) AS "a OVER b" FROM x')


def test_errors_of_planning_have_their_kind(planner):
    with pytest.raises(UnknownTable, match="nowhere"):
        planner.plan("SELECT 1 FROM nowhere")
    with pytest.raises(UnknownColumn, match="nothing"):
        planner.plan("SELECT nothing FROM x")


def test_operands_of_every_expression_are_mapped():
    a, b = n.ColumnRef(0), n.ColumnRef(1)

    def swapped(expression):
        return b if expression == a else a

    assert n.map_operands(n.Call("add", (a, b)), swapped) == n.Call("add", (b, a))
    assert n.map_operands(n.Cast(a, pa.int8()), swapped) == n.Cast(b, pa.int8())
    assert n.map_operands(n.InList(a, (b,)), swapped) == n.InList(b, (a,))
    assert n.map_operands(n.Case(((a, b),), a), swapped) == n.Case(((b, a),), b)
    assert n.map_operands(n.Window("sum", (a,), (b,)), swapped) == n.Window("sum", (b,), (a,))
    assert n.map_operands(a, swapped) == a
