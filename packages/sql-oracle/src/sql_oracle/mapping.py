"""Which SQL table holds which parameters of a PyTorch module, and in what layout."""

import math
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sql_oracle.errors import MappingError
from sql_oracle.reference import GPTConfig

Array = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How one SQL table is read out of one or several parameters.

    The parameters are stacked over a new first axis when there are several (or when ``stack`` is
    set), reshaped in C order to ``shape``, and their axes permuted to the table's dims.

    Attributes:
        parameters: one parameter name, or a tuple of names of equal shape.
        shape: the tensor's shape before the permutation; None leaves it as it is.
        axes: for each dim of the table, the axis of the reshaped tensor; None keeps the order.
        stack: whether the parameters are stacked; None means when there are several.
    """

    parameters: str | tuple[str, ...]
    shape: tuple[int, ...] | None = None
    axes: tuple[int, ...] | None = None
    stack: bool | None = None

    def __post_init__(self) -> None:
        names = (self.parameters,) if isinstance(self.parameters, str) else self.parameters
        if not isinstance(names, list | tuple) or not names or not _all(names, str):
            raise MappingError(
                problems=[f"parameters is {self.parameters!r}; use one name, or a tuple of names"]
            )
        for what, given in (("shape", self.shape), ("axes", self.axes)):
            if given is not None and not (
                isinstance(given, list | tuple) and _all(given, Integral)
            ):
                raise MappingError(
                    problems=[f"{names[0]}: {what} is {given!r}; use a tuple of whole numbers"]
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Parameter names, also when there is only one."""
        return (self.parameters,) if isinstance(self.parameters, str) else self.parameters

    @property
    def stacked(self) -> bool:
        """Whether the tensor has a leading axis over the parameters."""
        return len(self.names) > 1 if self.stack is None else self.stack

    def table_shape(self, shapes: MappingABC[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Shape of the table for the given parameter shapes.

        Raises:
            ValueError: the parameters cannot be stacked, reshaped or permuted like this.
        """
        first = shapes[self.names[0]]
        for name in self.names[1:]:
            if shapes[name] != first:
                raise ValueError(
                    f"{self.names[0]} has shape {first} and {name} has {shapes[name]}; "
                    "stacked parameters need equal shapes"
                )
        if len(self.names) > 1 and not self.stacked:
            raise ValueError("several parameters in one table must be stacked")
        full = (len(self.names), *first) if self.stacked else first
        shape = full if self.shape is None else self.shape
        if math.prod(shape) != math.prod(full):
            raise ValueError(f"a tensor of shape {full} does not reshape to {shape}")
        if self.axes is None:
            return shape
        if sorted(self.axes) != list(range(len(shape))):
            raise ValueError(f"axes {self.axes} do not permute a tensor of {len(shape)} axes")
        return tuple(shape[axis] for axis in self.axes)

    def to_table(self, arrays: MappingABC[str, Array]) -> Array:
        """The table's array, read from the parameters' arrays."""
        parts = [np.asarray(arrays[name]) for name in self.names]
        tensor = np.stack(parts) if self.stacked else parts[0]
        if self.shape is not None:
            tensor = tensor.reshape(self.shape)
        return tensor if self.axes is None else tensor.transpose(self.axes)

    def to_parameters(
        self, table: Array, shapes: MappingABC[str, tuple[int, ...]]
    ) -> dict[str, Array]:
        """The parameters' arrays, read from the table's array."""
        tensor = np.asarray(table)
        if self.axes is not None:
            tensor = tensor.transpose(np.argsort(self.axes))
        full = (len(self.names), *shapes[self.names[0]])
        rows = tensor.reshape(full)
        return {name: rows[i].reshape(shapes[name]) for i, name in enumerate(self.names)}


def _all(values: Sequence[object], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


class Mapping:
    """A complete connection of a session's tables with a module's parameters.

    Args:
        tables: for each table a :class:`TensorMap`, or a parameter name when the layouts agree.
    """

    def __init__(self, tables: MappingABC[str, TensorMap | str]) -> None:
        if not isinstance(tables, MappingABC):
            raise MappingError(
                problems=[f"tables is a {type(tables).__name__}; map table names to TensorMaps"]
            )
        for name, entry in tables.items():
            if not isinstance(entry, str | TensorMap):
                raise MappingError(
                    problems=[f"table {name} is mapped to {entry!r}; use a name or a TensorMap"]
                )
        self._tables = {
            name: TensorMap(entry) if isinstance(entry, str) else entry
            for name, entry in tables.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __getitem__(self, table: str) -> TensorMap:
        return self._tables[table]

    def validate(self, table_shapes: MappingABC[str, tuple[int, ...]], module: nn.Module) -> None:
        """Check that every table and every parameter is connected once, with fitting shapes.

        Args:
            table_shapes: shape of each of the session's parameter tables.
            module: the PyTorch side; tied parameters count once, under their first name.

        Raises:
            MappingError: listing every name that is missing on either side.
        """
        shapes = parameter_shapes(module)
        used = [name for entry in self._tables.values() for name in entry.names]
        problems = [
            f"parameter {name} is mapped {used.count(name)} times"
            for name in dict.fromkeys(used)
            if used.count(name) > 1
        ]
        for table, entry in self._tables.items():
            if table not in table_shapes or any(name not in shapes for name in entry.names):
                continue
            try:
                expected = entry.table_shape(shapes)
            except ValueError as error:
                problems.append(f"table {table}: {error}")
                continue
            if expected != tuple(table_shapes[table]):
                parameters = ", ".join(f"{name} {shapes[name]}" for name in entry.names[:2])
                problems.append(
                    f"table {table} has shape {tuple(table_shapes[table])}, its parameters "
                    f"({parameters}{', ...' if len(entry.names) > 2 else ''}) make {expected}"
                )
        error = MappingError(
            unmapped_tables=[name for name in table_shapes if name not in self._tables],
            unmapped_parameters=[name for name in shapes if name not in used],
            unknown_tables=[name for name in self._tables if name not in table_shapes],
            unknown_parameters=[name for name in dict.fromkeys(used) if name not in shapes],
            problems=problems,
        )
        if (
            error.unmapped_tables
            or error.unmapped_parameters
            or error.unknown_tables
            or error.unknown_parameters
            or error.problems
        ):
            raise error

    def to_tables(self, arrays: MappingABC[str, Array]) -> dict[str, Array]:
        """Arrays named by parameter (weights, gradients or moments) as arrays named by table."""
        return {table: entry.to_table(arrays) for table, entry in self._tables.items()}

    def to_parameters(self, tables: MappingABC[str, Array], module: nn.Module) -> dict[str, Array]:
        """Arrays named by table as arrays named by parameter."""
        shapes = parameter_shapes(module)
        arrays: dict[str, Array] = {}
        for table, entry in self._tables.items():
            arrays.update(entry.to_parameters(tables[table], shapes))
        return arrays

    @torch.no_grad()
    def load(self, tables: MappingABC[str, Array], module: nn.Module) -> None:
        """Copy the tables' arrays into the module's parameters."""
        arrays = self.to_parameters(tables, module)
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))


def parameter_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, tied ones once."""
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def gpt_mapping(config: GPTConfig) -> Mapping:
    """The tables of the GPT in SQL and the parameters of nanoGPT's module names.

    Weights of the blocks are stacked over ``layer``; ``attn_qkv`` has dims
    (layer, part, h, d, c) with part 0 = query, 1 = key, 2 = value.
    """
    layers, heads, width, depth = config.layers, config.heads, config.width, config.head_width

    def stacked(parameter: str, *shape: int) -> TensorMap:
        names = tuple(f"transformer.h.{layer}.{parameter}.weight" for layer in range(layers))
        return TensorMap(names, shape=(layers, *shape) if shape else None, stack=True)

    return Mapping(
        {
            "wte": "transformer.wte.weight",
            "wpe": "transformer.wpe.weight",
            "ln_attn": stacked("ln_1"),
            "attn_qkv": stacked("attn.c_attn", 3, heads, depth, width),
            "attn_out": stacked("attn.c_proj", width, heads, depth),
            "ln_mlp": stacked("ln_2"),
            "mlp_in": stacked("mlp.c_fc"),
            "mlp_out": stacked("mlp.c_proj"),
            "ln_final": "transformer.ln_f.weight",
        }
    )


#: Dims of every table of the GPT, in order; the value column is ``val``.
GPT_DIMS: dict[str, tuple[str, ...]] = {
    "wte": ("v", "c"),
    "wpe": ("t", "c"),
    "ln_attn": ("layer", "c"),
    "attn_qkv": ("layer", "part", "h", "d", "c"),
    "attn_out": ("layer", "c", "h", "d"),
    "ln_mlp": ("layer", "c"),
    "mlp_in": ("layer", "f", "c"),
    "mlp_out": ("layer", "c", "f"),
    "ln_final": ("c",),
}
