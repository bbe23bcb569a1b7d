"""Text form of a tensor program."""

from __future__ import annotations

from collections.abc import Sequence

from .budget import Memory, describe
from .tensor.graph import Node, Op, topological

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def explain_rows(reason: str) -> str:
    """Why a query runs on rows."""
    return f"engine: rows (DataFusion), because {reason}"


def explain_program(
    outputs: Sequence[Node],
    memory: Memory | None = None,
    budget: int | None = None,
    chunks: str | None = None,
) -> str:
    """One line for each operation: its result's shape, and what it is made of.

    Args:
        chunks: how the program runs chunk by chunk; None: at once.
    """
    nodes = topological(outputs)
    lines = [_line(node) for node in nodes]
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.op.value] = counts.get(node.op.value, 0) + 1
    summary = ", ".join(f"{count} {op}" for op, count in sorted(counts.items()))
    results = ", ".join(f"%{node.index}" for node in outputs)
    head = [f"program: {summary}"]
    if memory is not None:
        head.insert(0, _head(memory, budget, chunks))
    return "\n".join([*head, *lines, f"return {results}"])


def _head(memory: Memory, budget: int | None, chunks: str | None) -> str:
    how = "one tensor program" if chunks is None else f"one tensor program in {chunks}"
    limit = "" if budget is None else f", budget {describe(budget)}"
    return (
        f"engine: compact, {how}; memory: inputs {describe(memory.inputs)}, "
        f"at most {describe(memory.peak)} besides{limit}"
    )


def _line(node: Node) -> str:
    operands = ", ".join(f"%{o.node.index}" for o in node.operands)
    shape = "x".join(map(str, node.shape)) or "scalar"
    return f"  %{node.index} = {_what(node)}({operands})  [{shape} {node.dtype.value}]"


def _what(node: Node) -> str:
    match node.op:
        case Op.CONTRACT:
            terms = ",".join("".join(_LETTERS[a] for a in o.axes) for o in node.operands)
            return f"contract {terms}->{_LETTERS[: node.rank]}"
        case Op.INPUT:
            return f"input {node.attributes}"
        case Op.CONSTANT:
            return f"constant {node.attributes.key}"
        case Op.REDUCE:
            return f"{node.attributes[0]} over {list(node.attributes[1])}"
        case Op.MAP:
            return str(node.attributes)
        case Op.DATA:
            return "data"
    return f"{node.op.value} {node.attributes}" if node.attributes is not None else node.op.value
