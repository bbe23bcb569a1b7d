"""A program that runs chunk by chunk, within a memory budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..budget import Memory, memory_of
from ..lowering.torch_module import LoweredProgram, lower
from ..program import AssumptionFailed, Program, matmul_precision
from ..tensor.graph import Graph, Node, Op, topological
from ..tensor.maps import TORCH_DTYPES, map_function
from .selections import Selection
from .splits import Split, splits
from .stages import Stage, Stages

#: Reads the parts of arrays given by name.
Read = Callable[[Mapping[str, Selection]], dict[str, torch.Tensor]]
#: What is read of a chunk exists twice for a moment: as it is stored, and as it is used.
_COPIES = 2
#: Values that are part of the program, or counted as inputs.
_ELSEWHERE = (Op.CONSTANT, Op.DATA, Op.IOTA, Op.INPUT)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The programs of a split, in the order they run.

    Attributes:
        length: positions of a chunk; the last may have fewer.
        passes: for each pass, its program by the number of positions.
        between: after each number of passes, what computes whole values then (or None).
        kept: outputs that are put together from chunks.
    """

    split: Split
    length: int
    passes: tuple[Mapping[int, Stage], ...]
    between: tuple[Stage | None, ...]
    kept: tuple[Node, ...]

    @staticmethod
    def of(graph: Graph, outputs: Sequence[Node], split: Split, length: int) -> Schedule:
        stages = Stages(graph, outputs, split)
        sizes = tuple(dict.fromkeys((length, split.size % length or length)))
        passes = tuple(
            {size: stages.chunk(number, size) for size in sizes}
            for number in range(1, split.passes + 1)
        )
        needed = stages.needed([s for by_size in passes for s in by_size.values()])
        between = []
        for level in range(split.passes + 1):
            wanted = [
                n for n in needed if split.level[n.index] == level and n.index not in split.merged
            ]
            between.append(stages.between(wanted) if wanted else None)
        return Schedule(split, length, passes, tuple(between), tuple(stages.kept))

    def memory(self) -> Memory:
        """What a run needs.

        Whole and merged values and the outputs are counted to the end; beside them, the
        worst pass, or the worst computation between passes.
        """
        inputs: dict[str, int] = {}
        held = {n.index: n for n in self.kept}
        peak = read = 0
        for stage in filter(None, self.between):
            held |= {n.index: n for n in stage.results if n.op not in _ELSEWHERE}
            peak = max(peak, memory_of(stage.nodes).peak)
            leaves = [n for n in topological(stage.nodes) if n.op is Op.INPUT]
            inputs |= {
                str(n.attributes): n.nbytes for n in leaves if str(n.attributes) not in stage.needs
            }
        for by_size in self.passes:
            stage = by_size[self.length]
            held |= {n.index: n for n in stage.results}
            leaves = [n for n in topological(stage.nodes) if n.op is Op.INPUT]
            chunk = sum(n.nbytes for n in leaves if str(n.attributes) in stage.leaves)
            read = max(read, chunk)
            peak = max(peak, memory_of(stage.nodes).peak + (_COPIES - 1) * chunk)
        shapes = [n.shape for n in (*held.values(), *self.passes[0][self.length].nodes)]
        kept = sum(n.nbytes for n in held.values())
        return Memory(read + sum(inputs.values()), peak + kept, max(shapes, key=math.prod))


@dataclass(frozen=True, slots=True)
class Chunked:
    """A program that runs in chunks.

    Attributes:
        program: what it computes.
        memory: what it needs at most.
        dim: the split axis, as a message names it.
    """

    program: Program
    schedule: Schedule
    memory: Memory
    dim: str

    def describe(self) -> str:
        """How it runs, for a reader."""
        size, length = self.schedule.split.size, self.schedule.length
        passes = self.schedule.split.passes
        return (
            f"{-(-size // length)} chunks of {length} of {size} positions along "
            f"{self.dim}, {passes} pass{'' if passes == 1 else 'es'}"
        )

    def run(self, read: Read, device: torch.device) -> list[torch.Tensor]:
        """The outputs.

        Raises:
            AssumptionFailed: as :meth:`Program.run`.
        """
        with torch.no_grad(), matmul_precision(self.program.precision):
            return _Run(self.program, self.schedule, read, device).outputs()


def plan_chunks(
    program: Program,
    graph: Graph,
    budget: int,
    arrays: Callable[[str], Any],
    dims: Callable[[str], tuple[str, ...]],
) -> Chunked | None:
    """The cheapest way to run a program in chunks within ``budget`` bytes; None if none.

    Args:
        arrays: the array behind an input's source, asked for how it is stored in blocks.
        dims: the names of its axes.
    """
    outputs = (*program.nodes, *program.checks)
    leaves = {n.index: n for n in topological(outputs) if n.op is Op.INPUT}
    found: list[tuple[float, int, Chunked]] = []
    for split in splits(outputs):
        length = _length(graph, outputs, split, budget)
        if length is None:
            continue
        chosen = [leaves[i] for i in split.along if i in leaves]
        blocks = {
            n.index: _block(arrays, program.parts[str(n.attributes)], split.along[n.index])
            for n in chosen
        }
        length = _aligned(length, split.size, [b for b in blocks.values() if b])
        cost = 0.0
        for node in chosen:
            block = blocks[node.index]
            cost += node.size * max(1.0, (block or 0) / length)
        largest = max(chosen, key=lambda n: n.size)
        part = program.parts[str(largest.attributes)]
        dim = dims(part.source)[part.axis(split.along[largest.index])]
        schedule = Schedule.of(graph, outputs, split, length)
        chunked = Chunked(program, schedule, schedule.memory(), dim)
        whole = sum(n.size for n in leaves.values() if n.index not in split.along)
        found.append((cost * split.passes + whole, split.along[largest.index], chunked))
    return min(found, key=lambda f: f[:2])[2] if found else None


def _length(graph: Graph, outputs: Sequence[Node], split: Split, budget: int) -> int | None:
    """The longest chunk that fits; memory grows linearly with it."""
    one = _memory(graph, outputs, split, 1).total
    if one > budget:
        return None
    half = max(1, split.size // 2)
    slope = (_memory(graph, outputs, split, half).total - one) / max(1, half - 1)
    length = half if slope <= 0 else min(half, 1 + int((budget - one) / slope))
    while length > 1 and _memory(graph, outputs, split, length).total > budget:
        length = max(1, length * 9 // 10)
    return length


def _aligned(length: int, size: int, blocks: Sequence[int]) -> int:
    """Whole blocks, where one fits; else chunks of about equal size."""
    largest = max(blocks, default=1)
    if 1 < largest <= length:
        return length // largest * largest
    return -(-size // -(-size // length))


def _block(arrays: Callable[[str], Any], part: Selection, axis: int) -> int | None:
    """Positions along an axis that a lazy array computes together."""
    array = arrays(part.source)
    at = part.axis(axis)
    chunks = getattr(array, "chunks", None)
    if not chunks:
        return None
    chunk = chunks[at]
    return int(max(chunk) if isinstance(chunk, tuple) else chunk)


def _memory(graph: Graph, outputs: Sequence[Node], split: Split, length: int) -> Memory:
    return Schedule.of(graph, outputs, split, length).memory()


class _Run:
    """One run of a chunked program."""

    def __init__(
        self, program: Program, schedule: Schedule, read: Read, device: torch.device
    ) -> None:
        self._program = program
        self._schedule = schedule
        self._split = schedule.split
        self._read = read
        self._device = device
        self._known: dict[int, torch.Tensor] = {}

    def outputs(self) -> list[torch.Tensor]:
        for node in self._schedule.kept:
            self._known[node.index] = torch.empty(
                node.shape, dtype=TORCH_DTYPES[node.dtype], device=self._device
            )
        self._between(0)
        for number, stages in enumerate(self._schedule.passes, start=1):
            self._pass(stages)
            self._between(number)
        if not all(bool(self._known[node.index]) for node in self._program.checks):
            raise AssumptionFailed
        return [self._known[node.index] for node in self._program.nodes]

    def _between(self, passes: int) -> None:
        """Compute the whole values that are known now."""
        stage = self._schedule.between[passes]
        if stage is not None:
            self._known.update(self._computed(stage, self._lowered(stage)))

    def _lowered(self, stage: Stage) -> LoweredProgram:
        return lower(stage.nodes, self._device, self._program.precision)

    def _pass(self, stages: Mapping[int, Stage]) -> None:
        size, length = self._split.size, self._schedule.length
        lowered = {n: self._lowered(stage) for n, stage in stages.items()}
        for start in range(0, size, length):
            count = min(length, size - start)
            results = self._computed(stages[count], lowered[count], start, start + count)
            for index, value in results.items():
                self._accept(index, value, start, start + count)

    def _accept(self, index: int, value: torch.Tensor, start: int, stop: int) -> None:
        axis = self._split.along.get(index)
        if axis is not None:
            self._known[index].narrow(axis, start, stop - start).copy_(value)
        elif start == 0:
            self._known[index] = value.clone()
        else:
            merge = map_function(self._split.merged[index]).torch
            self._known[index] = merge(self._known[index], value)

    def _computed(
        self, stage: Stage, lowered: LoweredProgram, start: int = 0, stop: int = 0
    ) -> dict[int, torch.Tensor]:
        parts = {}
        inputs: dict[str, torch.Tensor] = {}
        for name in lowered.inputs:
            if name in stage.needs:
                index, cut = stage.needs[name]
                value = self._known[index]
                inputs[name] = value if cut is None else value.narrow(cut, start, stop - start)
            elif name in stage.leaves:
                leaf, axis = stage.leaves[name]
                parts[name] = self._program.parts[leaf].narrowed(axis, start, stop)
            else:
                parts[name] = self._program.parts[name]
        inputs |= self._read(parts)
        dtypes = {str(n.attributes): n.dtype for n in topological(stage.nodes) if n.op is Op.INPUT}
        arguments = [inputs[n].to(TORCH_DTYPES[dtypes[n]]) for n in lowered.inputs]
        values = lowered.module(*arguments)
        return {n.index: v for n, v in zip(stage.results, values, strict=True)}
