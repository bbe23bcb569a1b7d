"""Order of axes in memory: gradients laid out like the weights they update.

The order of a computed array's axes is free until it meets an array of the user's. A
gradient stacked over layers meets its weight table in the optimizer; with the table's own
order both are read along the same lines, and the product that makes it costs the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..tensor.graph import Graph, Node, Op, Operand, topological

Order = tuple[int, ...]


def align_layouts(graph: Graph, outputs: Sequence[Node]) -> list[Node]:
    """The outputs with stacked products in the axis order of the inputs they meet."""
    nodes = topological(outputs)
    orders = _wanted_orders(nodes)
    new: dict[int, Node] = {}
    for node in nodes:
        operands = [Operand(new[o.node.index], o.axes) for o in node.operands]
        rebuilt = graph.intern(node.op, operands, node.shape, node.dtype, node.attributes)
        if node.index in orders:
            rebuilt = _reordered(graph, rebuilt, orders[node.index])
        new[node.index] = rebuilt
    return [new[o.index] for o in outputs]


def _wanted_orders(nodes: Sequence[Node]) -> Mapping[int, Order]:
    """For stacked products, the axis order of an input that they are combined with."""
    wanted: dict[int, Order] = {}
    inputs = _stored(nodes)
    for node in nodes:
        if node.op is not Op.MAP:
            continue
        full = [o for o in node.operands if len(o.axes) == node.rank]
        stored = next((o for o in full if o.node in inputs), None)
        for operand in full:
            found = None if stored is None else _stack_behind(operand)
            if stored is None or found is None:
                continue
            stack, places = found
            order = tuple(places.index(axis) for axis in stored.axes)
            if order != tuple(range(len(order))):
                wanted.setdefault(stack.index, order)
    return wanted


def _stack_behind(operand: Operand) -> tuple[Node, Order] | None:
    """The stacked product that an operand is, or is computed elementwise from alone, and
    where each of its axes lies in the operand's iteration space."""
    node = operand.node
    if _is_stack_of_products(node):
        return node, operand.axes
    if node.op is not Op.MAP:
        return None
    full = [o for o in node.operands if len(o.axes) == node.rank]
    found = _stack_behind(full[0]) if len({o.node for o in full}) == 1 else None
    if found is None:
        return None
    stack, places = found
    return stack, tuple(operand.axes[place] for place in places)


def _stored(nodes: Sequence[Node]) -> set[Node]:
    """Inputs, and arrays computed elementwise from one in its own order."""
    stored: set[Node] = set()
    for node in nodes:  # operands come first
        if node.op is Op.MAP and node.rank:
            own = tuple(range(node.rank))
            found = any(o.axes == own and o.node in stored for o in node.operands)
        else:
            found = node.op is Op.INPUT
        if found:
            stored.add(node)
    return stored


def _is_stack_of_products(node: Node) -> bool:
    return node.op is Op.STACK and all(
        o.node.op in (Op.CONTRACT, Op.CONSTANT) for o in node.operands
    )


def _reordered(graph: Graph, node: Node, order: Order) -> Node:
    """The STACK with its axes in ``order``, seen in the old one."""
    axis = order.index(node.attributes)
    operands = []
    for operand in node.operands:
        # Where each axis of the part goes, once the stack's axes are in their new places.
        axes = tuple(order.index(a) for a in operand.axes)
        operands.append(_sorted_product(graph, operand.node, axes))
    shape = tuple(node.shape[i] for i in order)
    stacked = graph.intern(Op.STACK, operands, shape, node.dtype, axis)
    return graph.intern(Op.MAP, [Operand(stacked, order)], node.shape, node.dtype, "broadcast")


def _sorted_product(graph: Graph, node: Node, axes: Order) -> Operand:
    """A product with its output axes in the order in which they are placed."""
    if node.op is not Op.CONTRACT:
        return Operand(node, axes)
    order = sorted(range(node.rank), key=axes.__getitem__)
    places = {old: new for new, old in enumerate(order)}
    operands = [Operand(o.node, tuple(places.get(a, a) for a in o.axes)) for o in node.operands]
    shape = tuple(node.shape[i] for i in order)
    product = graph.intern(Op.CONTRACT, operands, shape, node.dtype)
    return Operand(product, tuple(sorted(axes)))
