"""The weights of a compiled module: arrays by name, which are set without compiling anew.

They are the arrays of the executable, and so of the model that was compiled: a program is given
them at each run. What it needs that is computed of them (weights folded with a batch normalisation,
cast, joined, transposed) is computed again before the next run, as after any write to an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meta.base.errors import ArgumentError
from meta.grad.core import no_grad
from meta.ir import TensorType
from meta.runtime.inplace_writes import writable_buffer
from meta.runtime.ndarray import ndarray
from meta.runtime.out_of_memory import copy_to_device
from meta.vm.compiler.calling_convention import Program
from meta.vm.eager.kernel_contracts import same_bits
from meta.vm.executable import Executable
from meta.vm.modules.buffers import Memory
from meta.vm.run.signature import named, require_known, tensor_like


@dataclass(frozen=True, slots=True)
class Constant:
    """An array under one of its names.

    Attributes
    ----------
    array: None for one that the program does not use and that was not kept, of a module that was
    loaded. used: whether the program uses it.
    """

    type: TensorType
    array: ndarray | None
    used: bool


def type_of_array(array: ndarray) -> TensorType:
    """Return the type of an array."""
    return TensorType(array.shape, array.dtype)


def constants_of(model: Any, program: Program) -> dict[str, Constant]:
    """Return the arrays of a model by all names that they have; those of a program alone by the
    names of its parameters.
    """
    used = {id(a) for a in program.arrays}
    owner = getattr(model, "owner", None) or model
    state = getattr(owner, "state_dict", None)
    found: dict[str, ndarray] = {} if state is None else dict(state())
    params = program.module.main.params
    known = set(map(id, found.values()))
    for param, array in zip(
        params[len(params) - len(program.arrays) :], program.arrays, strict=True
    ):
        if id(array) not in known:
            found[param.name] = array
    return {n: Constant(type_of_array(a), a, id(a) in used) for n, a in found.items()}


class Constants:
    """Sets arrays of an executable by name."""

    def __init__(self, executable: Executable, by_name: Mapping[str, Constant]) -> None:
        self._executable, self.by_name = executable, dict(by_name)

    def set(self, values: Mapping[str, object]) -> None:
        """Set arrays to values, all or none; see `CompiledModule.set_many_constants`."""
        if not isinstance(values, Mapping):
            raise ArgumentError(
                "constants are set by name", expected="{name: tensor}", found=type(values).__name__
            )
        require_known(list(values), list(self.by_name), "constant")
        given = {name: tensor_like(v, "constant", name) for name, v in values.items()}
        problems = [p for name, array in given.items() if (p := self._problem(name, array))]
        by_array: dict[int, list[str]] = {}
        for name in given:
            array = self.by_name[name].array
            if array is not None:
                by_array.setdefault(id(array), []).append(name)
        if not problems:
            problems = [p for names in by_array.values() if (p := _differing(names, given))]
        if problems:
            raise ArgumentError(
                "these constants do not fit, and none was set",
                found="\n            ".join(problems),
            )
        self._write({several[0]: given[several[0]] for several in by_array.values()})

    def _problem(self, name: str, array: ndarray) -> str:
        type_ = self.by_name[name].type
        found = type_of_array(array)
        return "" if found == type_ else f"{name!r} is {type_}, and the tensor {found}"

    def _write(self, values: Mapping[str, ndarray]) -> None:
        targets = {n: a for n in values if (a := self.by_name[n].array) is not None}
        memory = []
        for name, array in targets.items():
            # A parameter is written, and no gradient is asked to know of it.
            with named("constant", name), no_grad():
                memory.append(writable_buffer(array, "set_many_constants", "set it outside"))
        written = Memory(memory)
        # First, so that nothing is written if there is no room: what is elsewhere, or is written
        # itself, as where two constants are exchanged.
        sources = [
            copy_to_device(v.tensor.detach(), a.device)
            if v.device != a.device or written.meets(v.tensor)
            else v.tensor
            for a, v in ((a, values[n]) for n, a in targets.items())
        ]
        with self._executable.between_runs():
            for array, source in zip(targets.values(), sources, strict=True):
                array.update(ndarray(source))


def _differing(names: Sequence[str], given: Mapping[str, ndarray]) -> str:
    """Return what is wrong with the values for one array under several names."""
    first, *others = (given[n].tensor for n in names)
    same = all(same_bits(first, other.to(first.device)) for other in others)
    return "" if same else f"{list(names)} are one array, and are given different values"
