"""Execution of the step program: two state buffers, compiled or not, captured on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from sql_compact import DenseProgram, matmul_precision


@dataclass(frozen=True, slots=True)
class StateSlot:
    """One state array: the input it is read from and the program's output that replaces it."""

    name: str
    input: str
    output: int


class StepEngine:
    """Runs a step from the published state into the spare one, and swaps them on demand.

    Args:
        program: its first ``scalars`` outputs are single numbers to report; the others
            are the next state.
        slots: where each state array is read and written.
        state: the initial arrays by slot name; they are not copied.
        compiled: compile the whole step (inputs to spare state) once.
    """

    def __init__(
        self,
        program: DenseProgram,
        slots: Sequence[StateSlot],
        state: Mapping[str, torch.Tensor],
        scalars: int,
        device: torch.device,
        compiled: bool,
    ) -> None:
        self._program = program
        self._slots = tuple(slots)
        self._scalars = scalars
        self._device = device
        self._compile = compiled
        self._published = dict(state)
        self._spare: dict[str, torch.Tensor] | None = None
        self._buffers: dict[str, torch.Tensor] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._report = torch.zeros(scalars, dtype=torch.float64, device=device)
        self._function: Callable[..., None] | None = None
        #: Compilations (or, uncompiled, lowerings) of the step.
        self.compilations = 0

    @property
    def published(self) -> Mapping[str, torch.Tensor]:
        """The current state by slot name."""
        return self._published

    def explain(self) -> str:
        """The folded program."""
        return self._program.explain()

    def replace(self, state: Mapping[str, torch.Tensor]) -> None:
        """Make other arrays the current state (copied into the buffers)."""
        for name, tensor in state.items():
            self._published[name].copy_(tensor)

    def run(self, inputs: Mapping[str, torch.Tensor]) -> list[float]:
        """Compute the next state without publishing it; returns the reported numbers.

        ``inputs`` are CPU tensors by input name, other than the state.
        """
        if self._device.type == "cuda":
            return self._run_captured(inputs)
        if self._compile:
            self._fill(inputs)
            self._call(self._buffers)
            return self._report.tolist()
        if not self.compilations:
            self.compilations = 1
        results = self._program.run(self._arguments(self._published, inputs))
        self._spare = {s.name: results[s.output] for s in self._slots}
        return [float(r) for r in results[: self._scalars]]

    def publish(self) -> None:
        """Make the state computed last the current one."""
        assert self._spare is not None
        self._published, self._spare = self._spare, self._published

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

    def _fill(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Copy the inputs into the buffers that the compiled step reads."""
        state = {s.input for s in self._slots}
        for name, dtype in self._program.inputs.items():
            if name in state:
                continue
            if name not in self._buffers:
                self._buffers[name] = torch.empty(
                    inputs[name].shape, dtype=dtype, device=self._device
                )
            self._buffers[name].copy_(inputs[name], non_blocking=True)
        if self._spare is None:
            self._spare = {n: torch.empty_like(t) for n, t in self._published.items()}

    def _call(self, inputs: Mapping[str, torch.Tensor]) -> None:
        if self._function is None:
            self._function = self._step_function()
            self.compilations += 1
        assert self._spare is not None
        arguments = self._arguments(self._published, inputs)
        spare = [self._spare[s.name] for s in self._slots]
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

        if not self._compile:
            return step
        return torch.compile(step, fullgraph=True, dynamic=False)

    def _run_captured(self, inputs: Mapping[str, torch.Tensor]) -> list[float]:
        """One graph for each direction between the two state buffers."""
        self._fill(inputs)
        assert self._spare is not None
        key = id(self._published[self._slots[0].name])
        if key not in self._graphs:
            self._warm_up()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._call(self._buffers)
            self._graphs[key] = graph
        self._graphs[key].replay()
        return self._report.tolist()

    def _warm_up(self) -> None:
        """Run once on a side stream, as capturing requires; compiles on the first call."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._call(self._buffers)
        torch.cuda.current_stream().wait_stream(stream)
