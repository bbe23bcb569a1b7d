"""Which axis of a program's inputs can be split into chunks, and what that does to each node.

Along a split axis a node is one of three things: *split* (one of its axes is the split one,
so a chunk of it can be computed from chunks), *merged* (a reduction over the split axis:
chunks give partial results, which are merged) or *whole* (everything else). What depends on
a merged node can only be computed after a pass over all chunks, so nodes have a level: how
many passes come before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..rewrites.engine import output_positions
from ..tensor.graph import Node, Op, topological

#: How partial results of a reduction are merged.
MERGES = {"sum": "add", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Split:
    """A program with one axis split.

    Attributes:
        size: of the axis.
        along: by split node, which of its axes is the split one.
        merged: by merged node, the function that merges its partial results.
        level: by node, how many passes over the chunks come before it is known.
        passes: over all chunks, for all outputs.
    """

    size: int
    along: Mapping[int, int]
    merged: Mapping[int, str]
    level: Mapping[int, int]
    passes: int


def splits(outputs: Sequence[Node]) -> list[Split]:
    """Every way of splitting one axis of the inputs that the program allows."""
    nodes = topological(outputs)
    found = []
    for places in _classes(nodes):
        split = _split(nodes, outputs, places)
        if split is not None:
            found.append(split)
    return found


def readers(nodes: Sequence[Node]) -> set[int]:
    """The nodes that depend on an input, of nodes in topological order."""
    found: set[int] = set()
    for node in nodes:
        if node.op is Op.INPUT or any(o.node.index in found for o in node.operands):
            found.add(node.index)
    return found


def _classes(nodes: Sequence[Node]) -> list[dict[int, set[int]]]:
    """Axes that must be split together: for each class, the axes of each node.

    What depends on no input (a mask of coordinates, positions) belongs to no class: a chunk
    of it is cut from the whole.
    """
    parents: dict[Place, Place] = {}

    def root(place: Place) -> Place:
        while parents.setdefault(place, place) != place:
            place = parents[place]
        return place

    depends = readers(nodes)
    for node in nodes:
        iteration: dict[int, Place] = {k: (node.index, k) for k in range(node.rank)}
        if node.index not in depends:
            continue
        outer = _outputs_of(node)
        for operand in node.operands:
            if operand.node.index not in depends:
                continue
            for axis, place in enumerate(operand.axes):
                if place < 0:
                    continue
                target = outer.get(place, -1 - place)
                mine = iteration.setdefault(target, (node.index, target))
                parents[root((operand.node.index, axis))] = root(mine)
    by_root: dict[Place, dict[int, set[int]]] = {}
    seeds = [n for n in nodes if n.op is Op.INPUT]
    wanted = {root((n.index, a)) for n in seeds for a in range(n.rank) if n.shape[a] > 1}
    for node in nodes:
        for axis in range(node.rank):
            top = root((node.index, axis))
            if node.index in depends and top in wanted:
                by_root.setdefault(top, {}).setdefault(node.index, set()).add(axis)
    return list(by_root.values())


def _outputs_of(node: Node) -> dict[int, int]:
    """The output axis at each place of the iteration space that has one."""
    return {place: axis for axis, place in enumerate(output_positions(node))}


def _split(
    nodes: Sequence[Node], outputs: Sequence[Node], places: Mapping[int, set[int]]
) -> Split | None:
    """The split of one class of axes; None if some node cannot be computed in chunks."""
    along: dict[int, int] = {}
    merged: dict[int, str] = {}
    level: dict[int, int] = {}
    size = 0
    for node in nodes:
        before = max((level[o.node.index] for o in node.operands), default=0)
        level[node.index] = before
        if node.op is Op.INPUT:
            axes = places.get(node.index, set())
            if len(axes) > 1:
                return None
            for axis in axes:
                along[node.index] = axis
                size = node.shape[axis]
            continue
        hits = set()
        for operand in node.operands:
            axis_or_none = along.get(operand.node.index)
            if axis_or_none is not None:
                hits.add(operand.axes[axis_or_none])
        if not hits:
            continue
        place = hits.pop()
        if hits or place < 0 or node.op in (Op.ATTENTION, Op.DROPOUT):
            return None
        outer = _outputs_of(node)
        if place in outer and not _fixes(node, place):
            along[node.index] = outer[place]
        elif node.op is Op.REDUCE:
            merged[node.index] = MERGES[node.attributes[0]]
            level[node.index] = before + 1
        elif node.op is Op.CONTRACT:
            merged[node.index] = MERGES["sum"]
            level[node.index] = before + 1
        else:
            return None
    if not along:
        return None
    passes = max(level[n.index] + (n.index in along) for n in outputs)
    passes = max([passes, *(level[i] for i in merged)])
    return Split(size, along, merged, level, passes)


def _fixes(node: Node, place: int) -> bool:
    """Whether an operation pairs positions along an axis with those of another."""
    return node.op is Op.DIAGONAL and place == node.attributes[0]
