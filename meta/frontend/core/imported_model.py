"""`ImportedModel`: a `Model` whose code is a program of another system.

A source's importer derives from it and writes `convert`; parameters, inputs and modes are here.
"""

from __future__ import annotations

import inspect
import keyword
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from meta.base.call_context import current
from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.tracing import Trace
from meta.runtime.ndarray import ndarray


class ImportedModel(Model):
    """A model whose state has the names of its source, "conv1.weight", and whose code is converted
    anew for each signature of its inputs.

    It is in infer mode at first, since its weights are trained; `train` gives what differs in
    training (batch normalisation, dropout) its training form.

    Attributes
    ----------
    arrays: parameters and other state by the source's names.
    input_names: the source's names of the inputs, in order; two may be the same.
    """

    def build(self, arrays: Mapping[str, ndarray], input_names: Sequence[str]) -> None:
        """Take the state, by unique names, and the names of the inputs."""
        self.arrays = dict(arrays)
        self.input_names = tuple(input_names)
        self._signature = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
                for name in keywords(self.input_names)
            ]
        )
        self.eval()

    @abstractmethod
    def convert(self, *inputs: Any) -> Any:
        """Call the program's operators; the state is ``trace.lift(self.arrays[name])``."""

    @trace
    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Convert the program for inputs of these types."""
        return self.convert(*self._signature.bind(*inputs, **named).args)

    def members(self) -> dict[str, Any]:
        """Return the state by the source's names."""
        return self.arrays

    def settable(self) -> dict[str, Any]:
        """Return the state by the source's names, which `convert` may set: arrays that the program
        writes to.
        """
        return self.arrays

    def call_signature(self) -> inspect.Signature:
        """Return the inputs, by the source's names where these are Python's, else ``in0``."""
        return self._signature

    def arguments(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return inputs in order, given by name: the source's, that of the keyword, or for names
        that are repeated the name and a number, ``data_0``.

        Raises ArgumentError for a name that is missing or unknown.
        """
        by_name = {key: i for i, key in enumerate(self._signature.parameters)}
        seen: Counter[str] = Counter()
        total = Counter(self.input_names)
        for i, name in enumerate(self.input_names):
            if total[name] == 1:
                by_name[name] = i
            else:
                by_name.setdefault(f"{name}_{seen[name]}", i)
                seen[name] += 1
        given: dict[int, Any] = {}
        for name, value in named.items():
            if name not in by_name:
                raise ArgumentError(
                    f"the model has no input {name!r}",
                    expected=", ".join(map(repr, self.input_names)) or "no inputs",
                    hint=nearest(name, by_name),
                )
            if by_name[name] in given:
                raise ArgumentError(f"the input {name!r} is given twice")
            given[by_name[name]] = value
        missing = [n for i, n in enumerate(self.input_names) if i not in given]
        if missing:
            raise ArgumentError(f"the input {missing[0]!r} is missing", found=", ".join(named))
        return tuple(given[i] for i in range(len(given)))


def active_trace() -> Trace:
    """Return the trace in force, in which a program of another system is converted."""
    trace = current()
    if not isinstance(trace, Trace):
        raise ArgumentError(
            "an imported program is converted under a trace", hint="call the model, not `convert`"
        )
    return trace


def keywords(names: Sequence[str]) -> list[str]:
    """Return a Python name for each name: itself if it is one and not repeated, else ``in`` and
    its place. "self" is what a model is called in its own methods.

    >>> keywords(["data", "input.1", "x", "x"])
    ['data', 'in1', 'in2', 'in3']
    """
    counts = Counter(names)
    own = [
        n.isidentifier() and not keyword.iskeyword(n) and n != "self" and counts[n] == 1
        for n in names
    ]
    taken = {n for n, fits in zip(names, own, strict=True) if fits}
    result = []
    for i, (name, fits) in enumerate(zip(names, own, strict=True)):
        key = name if fits else f"in{i}"
        while not fits and key in taken:
            key += "_"
        taken.add(key)
        result.append(key)
    return result
