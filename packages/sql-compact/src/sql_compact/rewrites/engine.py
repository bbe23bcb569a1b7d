"""The rewriting engine: rebuild a program bottom-up through a table of named rules.

A pass rebuilds every node in dependency order. Its axes get labels, its operands are
the rewritten ones, and the first rule that applies replaces it; a rule may reorder axes
or drop one the value does not depend on, since users of a node refer to axes by label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..domain import Range
from ..tensor.graph import Graph, Node, Op, Operand, topological
from ..tensor.labelled import Axis, Tensor, TensorBuilder


@dataclass(frozen=True, slots=True)
class View:
    """A node with labels on its iteration space, as rules see it.

    Attributes:
        operands: the operands, labelled; what is gathered along has an axis of its own.
        places: labels of each operand's axes in the order of the node's own operand.
        axes: labels of the output axes.
        reduced: labels of iteration axes that are not output axes.
    """

    op: Op
    attributes: object
    operands: tuple[Tensor, ...]
    places: tuple[tuple[Axis, ...], ...]
    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    node: Node


Rule = Callable[["Rewriter", View], Tensor | None]


@dataclass(frozen=True, slots=True)
class Pass:
    """A named list of rules, tried in order at each node of the given operation."""

    name: str
    rules: Mapping[Op, Sequence[Rule]]


@dataclass(slots=True)
class Rewriter:
    """Carries out passes over one graph.

    Attributes:
        exact: rules must not assume that values are finite.
        finite: factors that a rule assumed to be finite everywhere; the caller either
            checks them at run time or knows that the final result will be checked.
        apart: sums that no rule makes one term of; whether one does is a matter of the node
            alone, and the same terms meet in many longer sums.
    """

    builder: TensorBuilder
    exact: bool = False
    finite: dict[Node, None] = field(default_factory=dict)
    apart: set[Node] = field(default_factory=set)

    @property
    def graph(self) -> Graph:
        return self.builder.graph

    def run(self, stage: Pass, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs after one pass, over the same labels (in any order, or fewer)."""
        done: dict[int, Tensor] = {}
        places: dict[int, tuple[Axis, ...]] = {}
        for node in topological(t.node for t in outputs):
            view = self._labelled(node, done, places)
            places[node.index] = view.axes
            done[node.index] = self.apply(stage, view)
        return [_relabel(done[t.node.index], places[t.node.index], t.axes) for t in outputs]

    def apply(self, stage: Pass, view: View) -> Tensor:
        """The first applicable rule's result, else the node over its new operands."""
        for rule in stage.rules.get(view.op, ()):
            result = rule(self, view)
            if result is not None:
                return result
        return self.rebuild(view)

    def _labelled(
        self, node: Node, done: Mapping[int, Tensor], places: Mapping[int, tuple[Axis, ...]]
    ) -> View:
        labels = [Axis(str(i), Range(size)) for i, size in enumerate(iteration_sizes(node))]
        own = tuple(_operand_labels(node, operand, labels) for operand in node.operands)
        operands = tuple(
            _relabel(done[operand.node.index], places[operand.node.index], axes)
            for operand, axes in zip(node.operands, own, strict=True)
        )
        return View(node.op, node.attributes, operands, own, *output_axes(node, labels), node)

    def expose(self, tensor: Tensor) -> View:
        """The node behind a tensor with the tensor's own labels on its output axes."""
        node = tensor.node
        sizes = iteration_sizes(node)
        given = dict(zip(output_positions(node), tensor.axes, strict=True))
        labels = [given.get(i) or Axis(str(i), Range(size)) for i, size in enumerate(sizes)]
        own = tuple(_operand_labels(node, operand, labels) for operand in node.operands)
        operands = tuple(
            Tensor(operand.node, axes) for operand, axes in zip(node.operands, own, strict=True)
        )
        return View(node.op, node.attributes, operands, own, *output_axes(node, labels), node)

    def rebuild(self, view: View) -> Tensor:
        """The same operation over the view's operands."""
        b = self.builder
        if view.op is Op.MAP:
            return b.map(str(view.attributes), *view.operands)
        if view.op is Op.REDUCE:
            return b.reduce_all(view.attributes[0], view.operands[0], view.reduced)
        if view.op is Op.CONTRACT:
            return b.contract(view.operands, view.reduced)
        return self._rebuild_positional(view)

    def _rebuild_positional(self, view: View) -> Tensor:
        """Operations whose operands must keep their axes in place."""
        node = view.node
        operands = [
            Operand(self.builder.arrange(tensor, axes), old.axes)
            for tensor, axes, old in zip(view.operands, view.places, node.operands, strict=True)
        ]
        rebuilt = self.graph.intern(node.op, operands, node.shape, node.dtype, node.attributes)
        return Tensor(rebuilt, view.axes)


def _operand_labels(node: Node, operand: Operand, labels: Sequence[Axis]) -> tuple[Axis, ...]:
    """Labels of an operand's axes; what has no place in the iteration space gets its own."""
    apart = node.op is Op.ATTENTION
    if not apart and node.op is not Op.GATHER:
        return tuple([labels[a] for a in operand.axes])
    return tuple(
        Axis("operand", Range(operand.node.shape[i])) if apart or a < 0 else labels[a]
        for i, a in enumerate(operand.axes)
    )


def iteration_sizes(node: Node) -> tuple[int, ...]:
    """Sizes of the node's iteration space."""
    if node.op in (Op.REDUCE, Op.SLICE, Op.DIAGONAL):
        return node.operands[0].node.shape
    if node.op is Op.CONTRACT:
        sizes: dict[int, int] = dict(enumerate(node.shape))
        for operand in node.operands:
            sizes.update(zip(operand.axes, operand.node.shape, strict=True))
        return tuple(sizes[i] for i in sorted(sizes))
    return node.shape


def output_positions(node: Node) -> tuple[int, ...]:
    """Which iteration axis each output axis is."""
    rank = len(iteration_sizes(node))
    if node.op is Op.REDUCE:
        return tuple(i for i in range(rank) if i not in node.attributes[1])
    if node.op is Op.SLICE:
        return tuple(i for i in range(rank) if i != node.attributes[0])
    if node.op is Op.DIAGONAL:
        return tuple(i for i in range(rank) if i != node.attributes[1])
    return tuple(range(node.rank))


def output_axes(node: Node, labels: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Labels of the output axes, and of the rest of the iteration space."""
    outer = output_positions(node)
    rest = tuple(labels[i] for i in range(len(labels)) if i not in outer)
    return tuple(labels[i] for i in outer), rest


def _relabel(tensor: Tensor, old: tuple[Axis, ...], new: tuple[Axis, ...]) -> Tensor:
    if tensor.axes == old:
        return Tensor(tensor.node, new)
    names = dict(zip(old, new, strict=True))
    return Tensor(tensor.node, tuple(names[a] for a in tensor.axes))
