"""Weights without the rest of the state: safetensors files, and another model's names.

A ``NameMap`` says which external parameter each slice of a table is. It is a table of rules, so
another architecture is another constant; ``NANOGPT`` is that of the GPT in this project.
"""

from __future__ import annotations

import itertools
import os
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import safetensors
import safetensors.numpy

from sql_resident.checkpoint.files import POSIX_FILES, FileOps, checked_path, write_atomically
from sql_resident.checkpoint.format import ArraySpec, spec_mismatches
from sql_resident.errors import CheckpointError

FORMAT_KEY = "sql_resident.weights"
FORMAT_VERSION = "1"


def _placeholders(template: str) -> tuple[str, ...]:
    return tuple(field for _, field, _, _ in string.Formatter().parse(template) if field)


@dataclass(frozen=True, slots=True)
class NameRule:
    """One table, and the external parameters that its slices are.

    Attributes:
        table: the table's name.
        dims: its dims, in the order of its array's axes.
        external: the parameter's name. A placeholder such as ``{layer}`` is a leading dim: every
            coordinate of it is a parameter of its own.
        axes: the parameter's axes, each a run of the remaining dims merged in row-major order.
        aliases: further names of the same parameter (tied weights), exported too, and on import
            accepted when equal.
    """

    table: str
    dims: tuple[str, ...]
    external: str
    axes: tuple[tuple[str, ...], ...]
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sliced = self.sliced
        for name in (self.external, *self.aliases):
            if _placeholders(name) != sliced:
                raise CheckpointError(f"names of table {self.table!r} differ in placeholders")
        if sliced + tuple(itertools.chain.from_iterable(self.axes)) != self.dims:
            raise CheckpointError(
                f"rule of table {self.table!r}: placeholders {sliced} followed by axes {self.axes} "
                f"are not its dims {self.dims}; a rule slices and merges, it does not transpose"
            )

    @property
    def sliced(self) -> tuple[str, ...]:
        """The leading dims that the external name spells out."""
        return _placeholders(self.external)

    def parameters(
        self, shape: tuple[int, ...]
    ) -> Iterator[tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]]:
        """Yield (index of the slice, its external names, its external shape) for a table shape.

        Raises:
            CheckpointError: ``shape`` has another number of axes than ``dims``.
        """
        if len(shape) != len(self.dims):
            raise CheckpointError(
                f"table {self.table!r} has shape {shape}; its dims are {self.dims}",
                member=self.table,
            )
        sizes = dict(zip(self.dims, shape, strict=True))
        merged = tuple(int(np.prod([sizes[dim] for dim in axis])) for axis in self.axes)
        for index in np.ndindex(*(sizes[dim] for dim in self.sliced)):
            coordinates = dict(zip(self.sliced, index, strict=True))
            names = tuple(name.format(**coordinates) for name in (self.external, *self.aliases))
            yield index, names, merged


@dataclass(frozen=True, slots=True)
class NameMap:
    """Rules for every table of a model.

    Attributes:
        rules: one for each table.
        ignored: suffixes of external names that are no parameters, such as a stored mask.
        prefix: removed from the start of external names on import, where present.
    """

    rules: tuple[NameRule, ...]
    ignored: tuple[str, ...] = ()
    prefix: str = ""

    def to_external(self, tables: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the parameters that ``tables`` hold: contiguous copies under external names.

        Raises:
            CheckpointError: tables are missing, unknown, or of another number of axes.
        """
        self._check_tables(tables)
        parameters: dict[str, np.ndarray] = {}
        for rule in self.rules:
            table = tables[rule.table]
            for index, names, shape in rule.parameters(table.shape):
                parameters.update(
                    (name, np.array(table[index], order="C").reshape(shape)) for name in names
                )
        return parameters

    def from_external(
        self, parameters: Mapping[str, np.ndarray], expected: Mapping[str, ArraySpec]
    ) -> dict[str, np.ndarray]:
        """Return new tables of the ``expected`` specs filled from external ``parameters``.

        Raises:
            CheckpointError: a parameter is missing, unknown, of another shape or dtype, or two
                tied ones differ; ``mismatches`` lists all of them, both sides.
        """
        self._check_tables(expected)
        found = {
            name.removeprefix(self.prefix): np.asarray(array)
            for name, array in parameters.items()
            if not name.endswith(self.ignored)
        }
        wanted: dict[str, ArraySpec] = {}
        optional: set[str] = set()
        for rule in self.rules:
            spec = expected[rule.table]
            for _, names, shape in rule.parameters(spec.shape):
                wanted.update((name, ArraySpec(shape, spec.dtype)) for name in names)
                optional.update(names[1:])
        for name in optional - found.keys():
            del wanted[name]
        specs = {name: ArraySpec.of(array) for name, array in found.items()}
        lines = spec_mismatches(specs, wanted, "given", "expected")
        if lines:
            raise _mismatch("these parameters are another model's", lines)
        tables = {}
        for rule in self.rules:
            spec = expected[rule.table]
            table = np.empty(spec.shape, spec.dtype)
            for index, names, _ in rule.parameters(spec.shape):
                first = found[names[0]]
                for alias in names[1:]:
                    if alias in found and found[alias].tobytes() != first.tobytes():
                        lines.append(f"{alias}: differs from {names[0]}, to which it is tied")
                table[index] = first.reshape(table[index].shape)
            tables[rule.table] = table
        if lines:
            raise _mismatch("these parameters are not tied", lines)
        return tables

    def _check_tables(self, tables: Mapping[str, object]) -> None:
        known = {rule.table for rule in self.rules}
        if tables.keys() != known:
            raise CheckpointError(
                f"the name map lacks the tables {sorted(tables.keys() - known)}, "
                f"and the tables {sorted(known - tables.keys())} are not given"
            )


NANOGPT = NameMap(
    rules=(
        NameRule(
            "wte",
            ("v", "c"),
            "transformer.wte.weight",
            (("v",), ("c",)),
            aliases=("lm_head.weight",),
        ),
        NameRule("wpe", ("t", "c"), "transformer.wpe.weight", (("t",), ("c",))),
        NameRule("ln_attn", ("layer", "c"), "transformer.h.{layer}.ln_1.weight", (("c",),)),
        NameRule(
            "attn_qkv",
            ("layer", "part", "h", "d", "c"),
            "transformer.h.{layer}.attn.c_attn.weight",
            (("part", "h", "d"), ("c",)),
        ),
        NameRule(
            "attn_out",
            ("layer", "c", "h", "d"),
            "transformer.h.{layer}.attn.c_proj.weight",
            (("c",), ("h", "d")),
        ),
        NameRule("ln_mlp", ("layer", "c"), "transformer.h.{layer}.ln_2.weight", (("c",),)),
        NameRule(
            "mlp_in",
            ("layer", "f", "c"),
            "transformer.h.{layer}.mlp.c_fc.weight",
            (("f",), ("c",)),
        ),
        NameRule(
            "mlp_out",
            ("layer", "c", "f"),
            "transformer.h.{layer}.mlp.c_proj.weight",
            (("c",), ("f",)),
        ),
        NameRule("ln_final", ("c",), "transformer.ln_f.weight", (("c",),)),
    ),
    ignored=(".attn.bias",),
    prefix="_orig_mod.",
)
"""GPT-2 as nanoGPT names it, without biases (``bias=False``).

The attention of old versions stores its causal mask as ``attn.bias``, which is no parameter;
``torch.compile`` prefixes names with ``_orig_mod.``.
"""


@dataclass(frozen=True, slots=True)
class Weights:
    """The content of a weights file."""

    tables: Mapping[str, np.ndarray]
    metadata: Mapping[str, str]


def export_safetensors(
    path: str | os.PathLike[str],
    tables: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    *,
    files: FileOps = POSIX_FILES,
) -> None:
    """Write ``tables`` and string ``metadata`` to a safetensors file, atomically.

    Raises:
        CheckpointError: a value or dtype does not fit the format, the metadata uses the key
            ``FORMAT_KEY``, or the file cannot be written (an old one is then unchanged).
    """
    for what, given in (("tables", tables), ("metadata", {} if metadata is None else metadata)):
        if not isinstance(given, Mapping):
            raise CheckpointError(
                f"cannot export {path}: {what} is a {type(given).__name__}, not a mapping"
            )
    header = dict(metadata or {})
    for key, value in header.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise CheckpointError(
                f"metadata {key!r}: {value!r} is not a pair of strings", path=path
            )
    if FORMAT_KEY in header:
        raise CheckpointError(f"the metadata key {FORMAT_KEY!r} is the format's own", path=path)
    header[FORMAT_KEY] = FORMAT_VERSION
    contiguous = {name: np.array(array, order="C", copy=None) for name, array in tables.items()}
    try:
        data = safetensors.numpy.save(contiguous, header)
    except (safetensors.SafetensorError, TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"cannot export {path}: {error}", path=path) from error
    write_atomically(path, (data,), files)


def read_safetensors(path: str | os.PathLike[str]) -> Weights:
    """Return every tensor and the metadata of a safetensors file, of whatever origin.

    Raises:
        CheckpointError: the file is absent, damaged, or holds a dtype that NumPy lacks.
    """
    try:
        with safetensors.safe_open(checked_path("import", path), framework="numpy") as file:
            tables = {name: file.get_tensor(name) for name in sorted(file.keys())}
            metadata = dict(file.metadata() or {})
    except (safetensors.SafetensorError, OSError, TypeError, ValueError, KeyError) as error:
        raise CheckpointError(f"cannot import {path}: {error}", path=path) from error
    metadata.pop(FORMAT_KEY, None)
    return Weights(MappingProxyType(tables), MappingProxyType(metadata))


def import_safetensors(
    path: str | os.PathLike[str], expected: Mapping[str, ArraySpec]
) -> dict[str, np.ndarray]:
    """Return the tables of a safetensors file, which must be of the ``expected`` specs.

    Raises:
        CheckpointError: as ``read_safetensors``; or names, shapes or dtypes differ, in which case
            ``mismatches`` lists every difference, both sides.
    """
    if not isinstance(expected, Mapping):
        raise CheckpointError(
            f"expected is a {type(expected).__name__}; give session.weight_specs", path=path
        )
    tables = dict(read_safetensors(path).tables)
    found = {name: ArraySpec.of(array) for name, array in tables.items()}
    lines = spec_mismatches(found, expected, "file", "expected")
    if lines:
        raise _mismatch(f"{path} holds another model's weights", lines, path)
    return tables


def _mismatch(
    message: str, lines: list[str], path: str | os.PathLike[str] | None = None
) -> CheckpointError:
    return CheckpointError(f"{message}:\n  " + "\n  ".join(lines), path=path, mismatches=lines)
