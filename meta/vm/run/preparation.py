"""What a program needs that is computed of a model's arrays alone: kept from call to call.

The pass `prepare` makes the function; main takes its results behind the arrays. They lie in memory
of their own, at addresses that stay, and are computed anew when an array was written or exchanged.
Writes show in torch's counters; of arrays that others may write unseen, the results are computed
for every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter

import torch

from meta.base.call_context import Default, use
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.base.errors import OutOfMemory
from meta.dialect.core import only
from meta.ir import Block, Function, Module, TensorType, Tuple, Var, operands, type_bytes, type_of
from meta.runtime import buffer_replacement, external_memory
from meta.runtime.allocate import storage_address
from meta.runtime.ndarray import ndarray
from meta.runtime.no_gradient import no_grad
from meta.runtime.out_of_memory import is_out_of_memory, out_of_memory

HINT = (
    "fewer arrays and programs that are still referred to; compile(..., memory_budget=BYTES), "
    "which prepares nothing"
)
_versions = attrgetter("_version")


class Preparation:
    """The results of a preparation for one executable.

    Parameters
    ----------
    function: returns its preparation. types: of the results. arrays: of the executable, the last of
    which it takes. written: those arrays that the program writes, none of which the function reads;
    where two share memory, nothing that is kept can be trusted. made: the results for the arrays as
    they are, if they were saved; the function is asked for when they no longer are.

    Attributes
    ----------
    tensors: the results, the same tensors from the first use on.
    """

    def __init__(
        self,
        function: Callable[[], Function],
        types: Sequence[TensorType],
        arrays: Sequence[ndarray],
        written: Sequence[ndarray],
        made: Sequence[torch.Tensor] = (),
    ) -> None:
        self._function, self._types, self._arrays = function, types, arrays
        self._written = written
        self.tensors = tuple(made)
        self._seen: tuple[int, int] | None = None
        self._state: list[int] | None = None
        # What the results depend on: until the function is asked for, anything that it may read.
        self._read = [a for a in arrays if not any(a is w for w in written)]
        if made:
            self._look()
            self._state = self._versions()
        else:
            used = {id(a) for _, given in self._parts for a in given}
            self._read = [a for a in self._read if id(a) in used]

    @cached_property
    def _parts(self) -> list[tuple[Module, list[ndarray]]]:
        """One program per result, and what it takes: in this way what it takes on the way is freed
        before the next.
        """
        function = self._function()
        given = dict(zip(function.params, self._arrays[-len(function.params) :], strict=True))
        parts = [_alone(function, result) for result in _results(function)]
        return [(part, [given[v] for v in part.main.params]) for part in parts]

    def allocate(self, device: str) -> None:
        """Make the memory of the results, if it is not there."""
        if self.tensors:
            return
        types = self._types
        try:
            with torch.inference_mode(False):  # they may be written outside of it
                self.tensors = tuple(
                    [
                        torch.empty(t.static_shape, dtype=TO_TORCH[t.dtype], device=device)
                        for t in types
                    ]
                )
            return
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            failure = _no_room(error, device, sum(map(type_bytes, types)))
        raise failure  # behind the block: what the first error holds is free by then

    def was_made(self) -> bool:
        """Whether the results are those of the arrays as they are, unless one was written since."""
        made = self._state is not None and self._seen == (
            buffer_replacement.replacement_count,
            external_memory.share_count,
        )
        return made and not self._is_recorded()

    def is_current(self) -> bool:
        """Whether the results are those of the arrays as they are now."""
        return self.was_made() and self._counted and self._state == self._versions()

    def update(self) -> bool:
        """Compute the results, unless they are up to date; return whether they were computed."""
        if self._seen != (buffer_replacement.replacement_count, external_memory.share_count):
            self._look()
        # A graph of somebody else's, which is recorded now, computes them whenever it is replayed.
        recorded = self._is_recorded()
        state = self._versions()
        if state is not None and state == self._state and not recorded:
            return False
        self._state = None
        if self.tensors[0].is_cuda and not recorded:
            torch.cuda.synchronize(self.tensors[0].device)  # other streams may still read them
        failure: OutOfMemory | None = None
        try:
            for (part, given), tensor in zip(self._parts, self.tensors, strict=True):
                self._compute(part, given, tensor)
        except OutOfMemory as error:  # of a single operator
            failure = _no_room(error, str(self.tensors[0].device), error.planned)
        if failure is not None:
            raise failure
        if self.tensors[0].is_cuda and not recorded:
            torch.cuda.synchronize(self.tensors[0].device)  # the next call may be on another stream
        self._state = None if recorded else state
        return True

    def forget(self) -> None:
        """Let the next use compute the results once more."""
        self._state = None

    def _is_recorded(self) -> bool:
        return self.tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()

    def _look(self) -> None:
        """See where the arrays are, and whether their counters tell of all writes."""
        self._seen = buffer_replacement.replacement_count, external_memory.share_count
        self._sources = [a.tensor for a in self._read]
        self._state = None
        written = {storage_address(a.tensor) for a in self._written}
        self._counted = all(
            external_memory.counts_writes(t) and storage_address(t) not in written
            for t in self._sources
        )

    def _versions(self) -> list[int] | None:
        """Return the counters of writes, None if they do not tell of all."""
        return list(map(_versions, self._sources)) if self._counted else None

    def _compute(self, part: Module, given: list[ndarray], tensor: torch.Tensor) -> None:
        # Only now: what is prepared is saved with a program, which a small process then loads.
        from meta.vm.run.interpreter import run_module

        with use(Default.handler), no_grad(), only("torch"), torch.no_grad():
            tensor.copy_(run_module(part, given).tensor)


def _results(function: Function) -> tuple[Var, ...]:
    result = function.body.result
    assert isinstance(result, Tuple)
    return tuple(v for v in result.fields if isinstance(v, Var))


def _alone(function: Function, result: Var) -> Module:
    """Return a program that computes one result of a function, of those parameters it needs."""
    needed, kept = {result}, []
    for binding in reversed(function.body.bindings):
        if binding.var in needed:
            kept.append(binding)
            needed.update(a for a in operands(binding.value) if isinstance(a, Var))
    params = tuple(p for p in function.params if p in needed)
    return Module({"main": Function(params, Block(tuple(kept[::-1]), result), type_of(result))})


def _no_room(error: Exception, device: str, planned: int | None) -> OutOfMemory:
    what = "what is computed of the model's arrays alone, before the first call"
    return out_of_memory(error, Device(device), what, planned=planned, hint=HINT)
