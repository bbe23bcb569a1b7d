"""The parts of arrays that a program reads.

A filter that fixes or bounds a coordinate takes positions of an input that are known before
anything is read. Such a slice or gather becomes part of the reading: the program's input is
then the part alone, and only that part of a lazy array is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..tensor.graph import Graph, Node, Op, Operand, topological


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a registered array.

    Attributes:
        source: the name of the array among a program's inputs.
        positions: what is read along each axis of the array: all of it (None), one position
            (the axis is dropped), or some.
        order: the array's remaining axes in the order of the part's.
    """

    source: str
    positions: tuple[int | np.ndarray | None, ...] = field(compare=False)
    order: tuple[int, ...]

    def axis(self, part: int) -> int:
        """The array's axis that is axis ``part`` of the part."""
        return self.order[part]

    def narrowed(self, part: int, start: int, stop: int) -> Selection:
        """Positions ``start`` to ``stop`` along an axis of the part."""
        at = self.axis(part)
        known = self.positions[at]
        assert not isinstance(known, int)
        taken = np.arange(start, stop) if known is None else known[start:stop]
        return self._with(at, taken)

    def at(self, part: int, taken: np.ndarray) -> Selection:
        """Some positions along an axis of the part."""
        at = self.axis(part)
        known = self.positions[at]
        assert not isinstance(known, int)
        return self._with(at, taken if known is None else known[taken])

    def without(self, part: int, position: int) -> Selection:
        """One position along an axis of the part, which is dropped."""
        at = self.axis(part)
        known = self.positions[at]
        assert not isinstance(known, int)
        one = position if known is None else int(known[position])
        positions = (*self.positions[:at], one, *self.positions[at + 1 :])
        return Selection(self.source, positions, tuple(a for a in self.order if a != at))

    def arranged(self, order: Sequence[int]) -> Selection:
        """The part with its axes in another order."""
        return Selection(self.source, self.positions, tuple(self.order[i] for i in order))

    def _with(self, at: int, taken: np.ndarray) -> Selection:
        positions = (*self.positions[:at], taken, *self.positions[at + 1 :])
        return Selection(self.source, positions, self.order)

    @property
    def is_whole(self) -> bool:
        return all(p is None for p in self.positions) and self.order == tuple(
            range(len(self.positions))
        )

    @property
    def name(self) -> str:
        """The source's name and what is read of it."""
        if self.is_whole:
            return self.source
        written = f"{self.source}[{', '.join(map(_written, self.positions))}]"
        if self.order != tuple(sorted(self.order)):
            written += f" as {self.order}"
        return written


def whole(name: str, rank: int) -> Selection:
    """All of an array."""
    return Selection(name, (None,) * rank, tuple(range(rank)))


def _written(positions: int | np.ndarray | None) -> str:
    if positions is None:
        return ":"
    if isinstance(positions, int):
        return str(positions)
    if is_range(positions):
        return f"{positions[0]}:{positions[-1] + 1}"
    digest = hashlib.sha256(np.ascontiguousarray(positions, dtype=np.int64).tobytes()).hexdigest()
    return f"{len(positions)} positions {digest[:8]}"


def is_range(positions: np.ndarray) -> bool:
    """Whether positions are consecutive and ascending, and there are some."""
    return len(positions) > 0 and bool(
        np.array_equal(positions, np.arange(positions[0], positions[0] + len(positions)))
    )


def absorb(graph: Graph, outputs: Sequence[Node]) -> tuple[list[Node], Mapping[str, Selection]]:
    """The outputs with known selections of inputs as inputs, and what each of these reads."""
    done: dict[int, Node] = {}
    parts: dict[int, Selection] = {}
    for node in topological(outputs):
        if node.op is Op.INPUT:
            parts[node.index] = whole(str(node.attributes), node.rank)
            done[node.index] = node
            continue
        operands = [Operand(done[o.node.index], o.axes) for o in node.operands]
        part = _selected(node, operands, parts)
        if part is not None:
            new = graph.input(part.name, node.shape, node.dtype)
            parts[new.index] = part
        elif all(a.node is b.node for a, b in zip(operands, node.operands, strict=True)):
            new = node
        else:
            new = graph.intern(node.op, operands, node.shape, node.dtype, node.attributes)
        done[node.index] = new
    new_outputs = [done[node.index] for node in outputs]
    read = [n for n in topological(new_outputs) if n.op is Op.INPUT]
    return new_outputs, {str(n.attributes): parts[n.index] for n in read}


def _selected(
    node: Node, operands: Sequence[Operand], parts: Mapping[int, Selection]
) -> Selection | None:
    """What an operation on an input selects of it; None if it does anything else."""
    part = parts.get(operands[0].node.index) if operands else None
    if part is None:
        return None
    if node.op is Op.SLICE:
        return part.without(*node.attributes)  # type: ignore[misc]
    if node.op is not Op.GATHER:
        return None
    value, index = operands
    if index.node.op is not Op.DATA or index.node.rank != 1 or index.axes[0] in value.axes:
        return None
    taken = index.node.attributes.values
    if len(np.unique(taken)) != len(taken):
        return None
    places = [index.axes[0] if a < 0 else a for a in value.axes]
    order = sorted(range(len(places)), key=places.__getitem__)
    return part.at(value.axes.index(-1), taken).arranged(order)
