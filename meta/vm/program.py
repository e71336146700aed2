"""`Program`: what the executors run, a module together with the arrays that its last parameters are
bound to.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta.ir import Module
from meta.runtime.ndarray import ndarray
from meta.vm.convention import Convention, require_arrays


@dataclass(frozen=True, slots=True)
class Program:
    """A traced model.

    Attributes
    ----------
    module: its main takes the inputs, then one parameter per array in ``arrays``.
    arrays: parameters and running statistics of the model, shared with it (what main writes, the
    model sees).
    convention: from the user's call arguments to main's inputs, and from main's result to what the
    user's function returned.
    steady: whether others write the arrays rarely, and between calls only: those of a model in
    infer mode. What depends on them alone is then computed once (see `meta.passes.prepare`).

    Raises TraceError for a main that takes or returns data values, references or functions.
    """

    module: Module
    arrays: tuple[ndarray, ...]
    convention: Convention
    steady: bool = False

    def __post_init__(self) -> None:
        require_arrays(self.convention.name, self.module.main)


def module_program(module: Module) -> Program:
    """Wrap a module whose main takes and returns tensors, positionally."""
    names = [p.name for p in module.main.params]
    return Program(module, (), Convention.positional("main", names))
