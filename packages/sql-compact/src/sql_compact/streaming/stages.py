"""A split program as small programs: one for each pass over the chunks, one after each.

The program of a pass reads a chunk of the split inputs, and values that are whole. The one
after it computes, from the merged results, what is whole and what later passes or the
result need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..tensor.graph import Graph, Node, Op, Operand, topological
from .splits import Split, readers

#: A whole value that a program reads, and the axis of it that a chunk is cut along, if any.
Need = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Stage:
    """One program.

    Attributes:
        nodes: what it computes, in order.
        results: the node of the split program that each of these is (a chunk or a partial
            result of).
        leaves: names of the inputs it reads a chunk of, and the axis.
        needs: by input name, the whole value that it is (cut from).
    """

    nodes: tuple[Node, ...]
    results: tuple[Node, ...]
    leaves: Mapping[str, tuple[str, int]]
    needs: Mapping[str, Need]


class Stages:
    """Makes the programs of a split."""

    def __init__(self, graph: Graph, outputs: Sequence[Node], split: Split) -> None:
        self._graph = graph
        self._outputs = list(dict.fromkeys(outputs))
        self._split = split
        self._order = topological(outputs)
        self._by_index = {n.index: n for n in self._order}
        self._depends = readers(self._order)

    @property
    def kept(self) -> list[Node]:
        """Outputs that are put together from chunks."""
        return [n for n in self._outputs if n.index in self._split.along]

    def chunk(self, number: int, size: int) -> Stage:
        """The program of pass ``number`` (from 1) for a chunk of ``size`` positions."""
        split = self._split
        merged = [n for n in self._order if n.index in split.merged]
        results = [n for n in merged if split.level[n.index] == number]
        results += [n for n in self.kept if split.level[n.index] == number - 1]
        return _Rebuilding(self._graph, split, self._depends, size).stage(results)

    def between(self, needed: Sequence[Node]) -> Stage:
        """The program that computes whole nodes from merged ones."""
        return _Rebuilding(self._graph, self._split, self._depends, None).stage(needed)

    def needed(self, stages: Sequence[Stage]) -> list[Node]:
        """Whole nodes that programs or the result read, in topological order."""
        found = {index for stage in stages for index, _ in stage.needs.values()}
        along = self._split.along
        found |= {n.index for n in self._outputs if n.index not in along}
        return [self._by_index[i] for i in sorted(found)]


class _Rebuilding:
    """Rebuilds nodes with the split axis shortened, cut off where a value is whole.

    Args:
        size: of a chunk; None to rebuild whole nodes, cut off at merged ones.
    """

    def __init__(self, graph: Graph, split: Split, depends: set[int], size: int | None) -> None:
        self._graph = graph
        self._split = split
        self._depends = depends
        self._size = size
        self._done: dict[int, Node] = {}
        self._leaves: dict[str, tuple[str, int]] = {}
        self._needs: dict[str, Need] = {}

    def stage(self, results: Sequence[Node]) -> Stage:
        build: Callable[[Node], Node] = self._whole if self._size is None else self._chunk
        wanted = {n.index for n in results}
        for node in topological(results):
            if node.index in wanted or self._inside(node):
                self._done[node.index] = build(node)
        nodes = tuple(self._done[n.index] for n in results)
        read = {str(n.attributes) for n in topological(nodes) if n.op is Op.INPUT}
        return Stage(
            nodes,
            tuple(results),
            {k: v for k, v in self._leaves.items() if k in read},
            {k: v for k, v in self._needs.items() if k in read},
        )

    def _inside(self, node: Node) -> bool:
        """Whether the node itself is computed by this program, where it is not a result."""
        return (node.index in self._split.along) == (self._size is not None)

    # --- whole ------------------------------------------------------------------------

    def _whole(self, node: Node) -> Node:
        if node.index in self._split.merged:
            return self._need(node, None)
        if node.op is Op.INPUT or node.index not in self._depends:
            return node
        operands = [Operand(self._done[o.node.index], o.axes) for o in node.operands]
        return self._graph.intern(node.op, operands, node.shape, node.dtype, node.attributes)

    # --- a chunk ----------------------------------------------------------------------

    def _chunk(self, node: Node) -> Node:
        assert self._size is not None
        axis = self._split.along.get(node.index)
        shape = list(node.shape)
        if axis is not None:
            shape[axis] = self._size
        if node.op is Op.INPUT:
            assert axis is not None
            name = f"chunk of {node.attributes}"
            self._leaves[name] = (str(node.attributes), axis)
            return self._graph.input(name, tuple(shape), node.dtype)
        place = self._place(node)
        operands = []
        for operand in node.operands:
            if operand.node.index in self._split.along:
                operands.append(Operand(self._done[operand.node.index], operand.axes))
                continue
            cut = operand.axes.index(place) if place in operand.axes else None
            operands.append(Operand(self._need(operand.node, cut), operand.axes))
        return self._graph.intern(node.op, operands, shape, node.dtype, node.attributes)

    def _place(self, node: Node) -> int:
        """Where the split axis lies in the node's iteration space."""
        for operand in node.operands:
            axis = self._split.along.get(operand.node.index)
            if axis is not None:
                return operand.axes[axis]
        raise AssertionError("a split node without a split operand")

    def _need(self, node: Node, cut: int | None) -> Node:
        """A whole value as an input, or a part of it along an axis.

        A mask of coordinates is cut where it is made, so that only positions are whole.
        """
        if node.index not in self._depends:
            if cut is None:
                return node
            if node.op is Op.MAP:
                return self._cut_map(node, cut)
        shape = list(node.shape)
        if cut is not None:
            assert self._size is not None
            shape[cut] = self._size
        name = f"%{node.index}" if cut is None else f"%{node.index} along {cut}"
        self._needs[name] = (node.index, cut)
        return self._graph.input(name, tuple(shape), node.dtype)

    def _cut_map(self, node: Node, cut: int) -> Node:
        operands = []
        for operand in node.operands:
            at = operand.axes.index(cut) if cut in operand.axes else None
            operands.append(Operand(self._need(operand.node, at), operand.axes))
        shape = [self._size if i == cut else n for i, n in enumerate(node.shape)]
        return self._graph.intern(node.op, operands, shape, node.dtype, node.attributes)
