"""Execution of the step program: two state buffers, compiled or not, captured on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType

import torch
from sql_compact import DenseProgram, matmul_precision

from .buffers import StateBuffers
from .staging import Staging
from .target import Target

_Options = dict[str, str | int | bool | Callable[..., object]]
#: The compiler would otherwise time several forms of a kernel and keep the fastest. Reductions add
#: up in different orders, and the compiler fuses different products with their sums elementwise, so
#: that another process, which times anew, could get other bits.
_DETERMINISTIC: _Options = {"deterministic": True, "triton.autotune_pointwise": False}
#: A row sum and a column sum in one kernel walk the rows one after another: measured on
#: layer norms' backward, three times slower than two kernels.
_FASTER: _Options = {"triton.mix_order_reduction": False}


@dataclass(frozen=True, slots=True)
class StateSlot:
    """One state array: the input it is read from and the program's output that replaces it."""

    name: str
    input: str
    output: int


class StepEngine:
    """Runs a step from the published state into the spare one; the caller publishes it.

    Args:
        program: its first ``scalars`` outputs are single numbers to report; the others
            are the next state.
        slots: where each state array is read and written.
        buffers: the state; several engines may share it.
        target: compiled, the whole step (inputs to spare state) is compiled once.
    """

    def __init__(
        self,
        program: DenseProgram,
        slots: Sequence[StateSlot],
        buffers: StateBuffers,
        scalars: int,
        target: Target,
    ) -> None:
        self._program = program
        self._slots = tuple(slots)
        self._scalars = scalars
        self._target = target
        self._state = buffers
        self._staging: dict[str, Staging] = {}
        self._prepared: Mapping[str, torch.Tensor] | None = None
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._report = torch.zeros(scalars, dtype=torch.float64, device=target.device)
        self._function: Callable[..., None] | None = None
        #: Compilations (or, uncompiled, lowerings) of the step.
        self.compilations = 0

    def explain(self) -> str:
        """The folded program."""
        return self._program.explain()

    @property
    def peak_bytes(self) -> int:
        """Estimated peak of a run, beside the state."""
        return self._program.peak_bytes()

    def run(self, inputs: Mapping[str, torch.Tensor]) -> list[float]:
        """Compute the next state without publishing it; returns the reported numbers.

        ``inputs`` are tensors by input name, other than the state; of the CPU, or of the
        device.
        """
        self.start(inputs, {})
        return self.finish()

    def prepare(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Copy inputs to the device ahead of a run with these inputs, the same object.

        On CUDA the copy happens once the run in flight, if there is one, has ended.
        """
        if self._target.fixed:
            self._upload("inputs", inputs)
            self._prepared = inputs

    def start(
        self, inputs: Mapping[str, torch.Tensor], numbers: Mapping[str, torch.Tensor]
    ) -> None:
        """Begin a run; on CUDA the host goes on while the device works.

        Args:
            inputs: arrays, unless :meth:`prepare` had the same object last.
            numbers: further inputs, which are new at every run.
        """
        if self._target.fixed:
            self._start_fixed(inputs, numbers)
            return
        self.compilations = self.compilations or 1
        given = {**inputs, **numbers}
        results = self._program.run(self._arguments(self._state.published, given))
        places = {t.untyped_storage().data_ptr() for t in given.values()}
        self._state.stage({s.name: _owned(results[s.output], places) for s in self._slots})
        self._report = torch.stack([r.to(torch.float64) for r in results[: self._scalars]])

    def finish(self) -> list[float]:
        """Wait for the run that was started; returns the reported numbers."""
        return self._report.tolist()

    def _arguments(
        self, state: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Every input of the program, in its order."""
        arrays = {s.input: state[s.name] for s in self._slots}
        return {
            name: arrays[name] if name in arrays else inputs[name].to(dtype)
            for name, dtype in self._program.inputs.items()
        }

    # --- static buffers: compiled steps and CUDA graphs ---------------------------------

    def _start_fixed(
        self, inputs: Mapping[str, torch.Tensor], numbers: Mapping[str, torch.Tensor]
    ) -> None:
        if inputs is not self._prepared:
            self.prepare(inputs)
        self._upload("numbers", numbers)
        arrays = {**self._staging["inputs"].arrays, **self._staging["numbers"].arrays}
        if self._target.captured:
            self._replay(arrays)
        else:
            self._call(arrays)

    def _upload(self, group: str, inputs: Mapping[str, torch.Tensor]) -> None:
        """Copy what the program reads of these inputs to where it reads it."""
        if group not in self._staging:
            dtypes = {n: d for n, d in self._program.inputs.items() if n in inputs}
            self._staging[group] = Staging(
                {n: inputs[n] for n in dtypes}, dtypes, self._target.device
            )
        self._staging[group].upload(inputs)

    def _call(self, inputs: Mapping[str, torch.Tensor]) -> None:
        if self._function is None:
            self._function = self._step_function()
            self.compilations += 1
        arguments = self._arguments(self._state.published, inputs)
        target = self._state.spare()
        spare = [target[s.name] for s in self._slots]
        with torch.no_grad(), matmul_precision(self._program.precision):
            self._function(list(arguments.values()), spare, self._report)

    def _step_function(self) -> Callable[..., None]:
        module, scalars = self._program.module, self._scalars
        outputs = [s.output for s in self._slots]

        def step(
            arguments: list[torch.Tensor], spare: list[torch.Tensor], report: torch.Tensor
        ) -> None:
            results = module(*arguments)
            for target, output in zip(spare, outputs, strict=True):
                target.copy_(results[output])
            report.copy_(torch.stack([r.to(torch.float64) for r in results[:scalars]]))

        if not self._target.compiled:
            return step
        return _compiled(step)

    def _replay(self, arrays: Mapping[str, torch.Tensor]) -> None:
        """One graph for each direction between the two state buffers."""
        self._state.spare()
        key = id(self._state.published)
        if key not in self._graphs:
            self._warm_up(arrays)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._call(arrays)
            self._graphs[key] = graph
        self._graphs[key].replay()

    def _warm_up(self, arrays: Mapping[str, torch.Tensor]) -> None:
        """Run once on a side stream, as capturing requires; compiles on the first call."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._call(arrays)
        torch.cuda.current_stream().wait_stream(stream)


def _compiled(step: FunctionType) -> Callable[..., None]:
    """The step compiled as one graph of fixed shapes."""
    # torch counts compilations by code object and refuses the ninth of one: as many sessions
    # as one likes need a code object each.
    own = FunctionType(
        step.__code__.replace(), step.__globals__, step.__name__, None, step.__closure__
    )
    try:
        options = {**_DETERMINISTIC, **_FASTER}
        return torch.compile(own, fullgraph=True, dynamic=False, options=options)
    except RuntimeError:
        # Another version of torch, which has no such kernel and so need not be told.
        return torch.compile(own, fullgraph=True, dynamic=False, options=_DETERMINISTIC)


def _owned(tensor: torch.Tensor, given: set[int]) -> torch.Tensor:
    """The tensor, copied if it lies in the caller's memory."""
    return tensor.clone() if tensor.untyped_storage().data_ptr() in given else tensor
