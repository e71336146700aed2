"""What a module of torch computes in float64, and how far rounding to float32 may move that.

The module is run several times more, and each time its parameters, its inputs and the result of
every operator are moved at random by as much as float32 rounds. Then torch runs it in float32, with
the channels first and last, with oneDNN and without, which adds up in other orders: an operator of
many terms rounds by more than its result. How far the outcomes lie apart is how well the module
determines them: what is further from them than `SLACK` times that is no rounding.

That torch's own runs are needed, was measured: MNASNet's gradients with the channels last are up to
800 times as far from those in float64 as four random runs, as a relu's argument changes its sign.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

UNIT = torch.finfo(torch.float32).eps
TIMES, SLACK = 4, 2.0

Results = dict[str, torch.Tensor]
Run = Callable[[torch.nn.Module, dict[str, torch.Tensor]], Results]


class Double(TorchDispatchMode):
    """Computes in float64 what a module asks float32 for; moves results if given a generator."""

    def __init__(self, generator: torch.Generator | None) -> None:
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            name: torch.float64 if value is torch.float32 else value
            for name, value in (kwargs or {}).items()
        }
        result = func(*args, **given)
        if any(r.alias_info is not None for r in func._schema.returns):
            return result  # a view, or what was written: moved when it was computed
        results = result if isinstance(result, tuple | list) else (result,)
        moved = [self.moved(r) for r in results]
        return type(result)(moved) if isinstance(result, tuple | list) else moved[0]

    def moved(self, value: Any) -> Any:
        """Return a float array moved by up to two units in the last place of float32, but for whole
        numbers: those of masks and positions are exact, and decide what is computed.
        """
        if self.generator is None or not isinstance(value, torch.Tensor):
            return value
        if value.dtype is not torch.float64:
            return value
        drawn = torch.rand(value.shape, generator=self.generator, dtype=torch.float64)
        return torch.where(value == value.round(), value, value * (1 + 2 * UNIT * (2 * drawn - 1)))


@dataclass(frozen=True)
class Bounded:
    """Arrays in float64, and how far from each of them rounding leads."""

    exact: Results
    bounds: dict[str, float]

    def errors(self, found: Results) -> dict[str, float]:
        """Return how far each array is off, in parts of its bound; 0 if all numbers are equal."""
        assert found.keys() == self.exact.keys()
        errors = {}
        for name, wanted in self.exact.items():
            assert found[name].shape == wanted.shape, name
            assert not (found[name].isnan() != wanted.isnan()).any(), name
            off = (found[name].double() - wanted)[found[name] != wanted].abs()
            errors[name] = float(off.max()) / self.bounds[name] if off.numel() else 0.0
        return errors


def bounded(module: torch.nn.Module, inputs: dict[str, torch.Tensor], run: Run) -> Bounded:
    """Return what ``run`` gives for a module and its inputs.

    An array has one bound, for all its elements.
    """
    exact = _evaluate(module, inputs, run, None)
    others = [
        _evaluate(module, inputs, run, torch.Generator().manual_seed(i)) for i in range(TIMES)
    ]
    others += _in_float32(module, inputs, run)
    bounds = {
        name: SLACK * max(float((o[name] - wanted).abs().max()) for o in others)
        for name, wanted in exact.items()
    }
    return Bounded(exact, bounds)


def _in_float32(
    module: torch.nn.Module, inputs: dict[str, torch.Tensor], run: Run
) -> Iterator[Results]:
    """Yield what torch gives in float32, in other orders of sums."""
    for order in (torch.contiguous_format, torch.channels_last):
        for onednn in (True, False):
            own = copy.deepcopy(module).to(memory_format=order)
            given = {
                n: x.contiguous(memory_format=order) if x.ndim == 4 else x
                for n, x in inputs.items()
            }
            with torch.backends.mkldnn.flags(enabled=onednn):
                yield {n: x.detach().double() for n, x in run(own, given).items()}


def _evaluate(
    module: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    run: Run,
    generator: torch.Generator | None,
) -> Results:
    (double, given), mode = doubled(module, inputs), Double(generator)
    with torch.no_grad():
        for array in (*double.parameters(), *double.buffers()):
            array.copy_(mode.moved(array))
    given = {n: mode.moved(x) for n, x in given.items()}
    with in_float64(), mode:
        return {n: x.detach().double() for n, x in run(double, given).items()}


def doubled(
    module: torch.nn.Module, inputs: dict[str, torch.Tensor]
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return copies in float64 of a module and its inputs."""
    given = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    return copy.deepcopy(module).double(), given


@contextmanager
def in_float64() -> Iterator[None]:
    """Let torch make tensors of float64 where nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
