"""How much work rewriting takes as a program grows: counted, not timed."""

import sys
from dataclasses import dataclass

import pytest
from sql_compact.dtypes import DType
from sql_compact.rewrites import layout
from sql_compact.rewrites.engine import Rewriter
from sql_compact.rewrites.sums import SUMS
from sql_compact.tensor.graph import topological


@dataclass(slots=True)
class CountingRewriter(Rewriter):
    """Counts how often rules look at an operation."""

    looks: int = 0

    def expose(self, tensor):
        self.looks += 1
        return Rewriter.expose(self, tensor)


def looks(bench, terms, readers):
    """Looks at a long sum whose terms do not merge, scaled and added to by each reader.

    Each reader is ``sum * m + b * m``, which becomes ``(sum + b) * m``: whether b merges with
    a term of the sum is the same question every time.
    """
    b = bench.builder
    total = bench.input("t0", bench.i)
    for term in range(1, terms):
        total = b.map("add", total, b.map("exp", bench.input(f"t{term}", bench.i)))
    added = bench.input("added", bench.i)
    outputs = []
    for reader in range(readers):
        factor = bench.input(f"m{reader}", bench.i)
        product, other = (b.map("multiply", x, factor) for x in (total, added))
        outputs.append(b.map("add", product, other))
    rewriter = CountingRewriter(b)
    results = rewriter.run(SUMS, outputs)
    nodes = topological([r.node for r in results])
    assert sum(n.attributes == "multiply" for n in nodes) == readers
    return rewriter.looks


@pytest.mark.parametrize("terms", [8, 32])
def test_terms_that_do_not_merge_are_compared_once_however_often_they_are_read(bench, terms):
    few, more, most = (looks(bench, terms, readers) for readers in (4, 8, 16))
    assert most - more == 2 * (more - few)
    # What a reader adds does not depend on the length of the sum.
    assert (more - few) / 4 < 8


def calls_of_layout(function):
    calls = 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == layout.__file__

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_layouts_visit_a_node_once_however_often_it_is_read(bench):
    b = bench.builder
    total = b.reduce_all("sum", bench.input("w", bench.i, bench.j), (bench.j,))
    counts = []
    for _ in range(3):
        for _ in range(6):
            # Not a doubling: each node is read by two.
            total = b.map("add", total, b.map("exp", total))
        node = b.cast(total, DType.FLOAT64).node
        counts.append(
            calls_of_layout(lambda n=node: layout.align_layouts(bench.builder.graph, [n]))
        )
    assert counts[2] - counts[1] == counts[1] - counts[0]
