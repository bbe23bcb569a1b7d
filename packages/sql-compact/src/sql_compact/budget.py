"""Memory that a program needs, known before it runs.

The estimate follows the program's schedule: an array is alive from the operation that
makes it to the last that reads it. What torch allocates inside one operation is covered by
:data:`WORKSPACE`, as a factor of the largest operation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .errors import BudgetError
from .lowering.schedule import allocation, schedule
from .tensor.graph import Node, Op

#: Times the largest operation's operands and result that may be copied within it.
WORKSPACE = 1
#: The part of a machine's memory that chunks take where no budget says more: one over this.
_CHUNKED_SHARE = 4
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


def machine_memory(device: torch.device) -> int:
    """Bytes of memory that a device has, in use or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not everywhere can one ask
        return sys.maxsize


@dataclass(frozen=True, slots=True)
class Limit:
    """The most bytes that a query may need.

    Attributes:
        budget: the caller's limit, None if there is none but the machine's.
        size: the smaller of both.
        chunked: what a query that needs more may take chunk by chunk; not all of a machine's
            memory is free.
    """

    budget: int | None
    size: int
    chunked: int

    @staticmethod
    def of(budget: int | None, device: torch.device) -> Limit:
        machine = machine_memory(device)
        if budget is not None and budget <= machine:
            return Limit(budget, budget, budget)
        return Limit(budget, machine, machine // _CHUNKED_SHARE)

    def exceeded(self, memory: Memory) -> BudgetError:
        """The error for a program that needs more; both figures are named."""
        if self.size == self.budget:
            what, advice = (
                f"memory_budget={describe(self.size)}",
                f"{_ADVICE}, or raise memory_budget",
            )
        else:
            what, advice = f"the {describe(self.size)} that the device has in all", _ADVICE
        return BudgetError(f"{_needs(memory)}, more than {what}. {advice}")


def check_rows(rows: int, columns: int, target: str) -> None:
    """Refuse to write out more rows than this machine's memory holds.

    Raises:
        BudgetError: eight bytes for each value are more; both figures are named.
    """
    size, limit = 8 * rows * columns, machine_memory(torch.device("cpu"))
    if size > limit:
        raise BudgetError(
            f"{target}: {rows:,} rows of {columns} columns take about {describe(size)}, more than "
            f"the memory of this machine, {describe(limit)}. {_ADVICE}"
        )


@contextmanager
def allocations_checked(memory: Memory, device: torch.device) -> Iterator[None]:
    """Turn running out of memory into an error that says what is needed.

    Raises:
        BudgetError: torch or Python got no more memory inside.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out_of_memory(memory, device) from error
    except RuntimeError as error:
        # torch has no type of its own for the memory of the CPU.
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise _out_of_memory(memory, device) from error


def _out_of_memory(memory: Memory, device: torch.device) -> BudgetError:
    return BudgetError(
        f"{_needs(memory)}, and {device} has not that much left. {_ADVICE}, or set memory_budget "
        "to what may be used, so that larger queries run in chunks"
    )


_ADVICE = "Select fewer rows or columns, aggregate before joining, or declare smaller domains"


def _needs(memory: Memory) -> str:
    shape = " x ".join(map(str, memory.largest)) or "scalar"
    return (
        f"the query needs about {describe(memory.total)} ({describe(memory.inputs)} of inputs, "
        f"{describe(memory.peak)} of results and intermediate arrays, the largest {shape})"
    )


def describe(size: int) -> str:
    """Bytes in the largest unit that leaves at least one."""
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
