"""Memory that a program needs, known before it runs.

The estimate follows the program's schedule: an array is alive from the operation that
makes it to the last that reads it. What torch allocates inside one operation is covered by
:data:`WORKSPACE`, as a factor of the largest operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import BudgetError
from .lowering.schedule import allocation, schedule
from .tensor.graph import Node, Op

#: Times the largest operation's operands and result that may be copied within it.
WORKSPACE = 1
#: Maps of floats to integers in the same order and back, in several steps.
_ORDERS = ("total_order", "from_total_order")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes a program needs.

    Attributes:
        inputs: of the arrays it reads, all at once.
        peak: of the arrays it makes, at the worst moment, with the workspace.
        largest: shape of its largest array.
    """

    inputs: int
    peak: int
    largest: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.inputs + self.peak


def memory_of(outputs: Sequence[Node]) -> Memory:
    """What running the program that computes ``outputs`` needs."""
    order = schedule(outputs)
    last = {o.node.index: i for i, node in enumerate(order) for o in node.operands}
    kept = {node.index for node in outputs}
    ends: dict[int, list[Node]] = {}
    for node in order:
        if node.index not in kept:
            ends.setdefault(last.get(node.index, len(order)), []).append(node)
    alive = peak = 0
    for i, node in enumerate(order):
        alive += allocation(node)
        read = sum(o.node.nbytes for o in node.operands)
        workspace = WORKSPACE * (read + allocation(node)) if _copies(node) else 0
        peak = max(peak, alive + workspace)
        alive -= sum(allocation(done) for done in ends.get(i, ()))
    inputs = sum(node.nbytes for node in order if node.op is Op.INPUT)
    largest = max(order, key=lambda node: node.size).shape if order else ()
    return Memory(inputs, peak, largest)


def _copies(node: Node) -> bool:
    """Whether torch needs more arrays of the operation's size to carry it out."""
    return node.op is Op.CONTRACT or (node.op is Op.MAP and node.attributes in _ORDERS)


def check_budget(memory: Memory, budget: int | None) -> None:
    """Refuse a program that needs more than ``budget`` bytes.

    Raises:
        BudgetError: it does; both figures are named.
    """
    if budget is None or memory.total <= budget:
        return
    shape = " x ".join(map(str, memory.largest)) or "scalar"
    raise BudgetError(
        f"the query needs about {describe(memory.total)} ({describe(memory.inputs)} of inputs, "
        f"{describe(memory.peak)} of results and intermediate arrays, the largest {shape}), more "
        f"than memory_budget={describe(budget)}. Select fewer rows or columns, aggregate "
        "before joining, or raise memory_budget"
    )


def describe(size: int) -> str:
    """Bytes in the largest unit that leaves at least one."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
