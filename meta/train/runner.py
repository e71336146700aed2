"""`Runner`: a model as a run executes it, compiled once per shape of its arguments, or
interpreted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from meta.base.errors import ArgumentError
from meta.grad.core import no_grad
from meta.model.model import Model
from meta.op.core import tree
from meta.vm.compilation import compile
from meta.vm.executable import Executable

EXECUTORS = ("vm", "interpreter")
MANY_SHAPES = 16
"""So many programs for one model are told: each new shape compiles for seconds."""


class Runner:
    """Calls a model. Nothing is recorded for `backward`.

    Parameters
    ----------
    model: what is run, in the mode that it is in when arguments of a shape are first met.
    executor: "vm" or "interpreter".

    Attributes
    ----------
    compile_seconds: the time that first calls took so far, compiling included.
    executables: the compiled programs, in the order of the shapes met.
    """

    def __init__(self, model: Model, executor: str) -> None:
        if executor not in EXECUTORS:
            raise ArgumentError(
                "there is no such executor", expected=" or ".join(EXECUTORS), found=repr(executor)
            )
        self.model, self.executor = model, executor
        self._runs: dict[Any, Callable[..., Any]] = {}
        self.executables: list[Executable] = []
        self.compile_seconds = 0.0

    def __call__(self, *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        key = (tuple([leaf.key for leaf in leaves]), tree.fingerprint(structure))
        run = self._runs.get(key)
        return self._first(key, args) if run is None else run(*args)

    def _first(self, key: Any, args: tuple[Any, ...]) -> Any:
        """Run for arguments of new shapes. The interpreter's kernels are compiled on the way."""
        start = time.perf_counter()
        run = self._runs[key] = self._compiled(args) if self.executor == "vm" else self._interpreted
        result = run(*args)
        self.compile_seconds += time.perf_counter() - start
        return result

    def _compiled(self, args: tuple[Any, ...]) -> Executable:
        self.executables.append(compile(self.model, *args))
        if len(self.executables) == MANY_SHAPES:
            warnings.warn(
                f"the batches had {MANY_SHAPES} different shapes so far, and each is compiled on "
                "its own; pad them to a few sizes",
                stacklevel=2,
            )
        return self.executables[-1]

    def _interpreted(self, *args: Any) -> Any:
        with no_grad():
            return self.model(*args)
