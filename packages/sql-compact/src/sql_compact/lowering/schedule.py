"""Order of execution: every node after its operands, keeping few arrays alive.

A plan lists a step's weight gradients last, which would keep every activation and
cotangent until the end. Greedy list scheduling runs a node as soon as running it frees
more than it allocates, and otherwise follows the plan's order. Without a compiler, what
allocates more than it frees is moved to its first user.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from ..tensor.graph import Node, Op, topological

#: Operations whose result is a view or a scalar: they allocate nothing.
_VIEWS = (Op.SLICE, Op.DIAGONAL, Op.CONSTANT, Op.DATA, Op.IOTA, Op.INPUT)


def allocation(node: Node) -> int:
    """Bytes that running the node allocates."""
    return 0 if node.op in _VIEWS else node.nbytes


def schedule(outputs: Sequence[Node]) -> list[Node]:
    """The nodes the outputs need, in an order that keeps peak memory low."""
    nodes = topological(outputs)
    uses = {node.index: 0 for node in nodes}
    users: dict[int, list[Node]] = {node.index: [] for node in nodes}
    waiting: dict[int, int] = {}
    for node in nodes:
        operands = {o.node.index: o.node for o in node.operands}
        waiting[node.index] = len(operands)
        for index in operands:
            uses[index] += 1
            users[index].append(node)
    for node in outputs:
        uses[node.index] += 1

    by_index = {node.index: node for node in nodes}
    ready = [node.index for node in nodes if waiting[node.index] == 0]
    heapq.heapify(ready)
    # Ready nodes that free more than they allocate, by how much. That grows only when an operand
    # is left to its last user.
    savings: dict[int, int] = {}

    def weigh(node: Node) -> None:
        operands = {o.node.index: o.node for o in node.operands}.values()
        freed = sum(allocation(o) for o in operands if uses[o.index] == 1)
        if freed > allocation(node):
            savings[node.index] = freed - allocation(node)

    for index in ready:
        weigh(by_index[index])
    order: list[Node] = []
    done: set[int] = set()
    while ready:
        index = _take(ready, savings)
        node = by_index[index]
        order.append(node)
        done.add(index)
        for user in users[index]:
            waiting[user.index] -= 1
            if waiting[user.index] == 0:
                heapq.heappush(ready, user.index)
                weigh(user)
        for operand in {o.node.index for o in node.operands}:
            uses[operand] -= 1
            if uses[operand] == 1:
                for user in users[operand]:
                    if waiting[user.index] == 0 and user.index not in done:
                        weigh(user)
    return order


def _take(ready: list[int], savings: dict[int, int]) -> int:
    """Take the node to run next from the heap: what saves most, else the plan's next."""
    if not savings:
        return heapq.heappop(ready)
    most = max(savings.values())
    best = next(index for index in ready if savings.get(index) == most)
    del savings[best]
    ready.remove(best)
    heapq.heapify(ready)
    return best


def defer(order: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    """The same nodes, those that allocate more than they free just before their first user.

    What runs call by call then finds an array's values still in cache, and arrays that grow
    from small ones, as masks and broadcast factors do, are not kept while they wait.
    """
    last = {o.node.index: node.index for node in order for o in node.operands}
    kept = {node.index for node in outputs}

    def grows(node: Node) -> bool:
        operands = {o.node.index: o.node for o in node.operands}
        freed = (allocation(o) for i, o in operands.items() if last[i] == node.index)
        return node.index not in kept and allocation(node) > sum(freed)

    growing = {node.index for node in order if grows(node)}
    deferred: dict[int, Node] = {}
    for first in order:
        if first.index in growing:
            continue
        waiting = [first]
        while waiting:
            node = waiting[-1]
            needed = [o.node for o in node.operands if o.node.index not in deferred]
            if needed:
                waiting.extend(reversed(needed))
            else:
                deferred[waiting.pop().index] = node
    return list(deferred.values())
