"""Source text that is ready to run: which kernels a call launches, with what.

The host functions of the text are interpreted with the numbers of a call. Tensors are only passed
on, so the launches of a call hold for all tensors of its extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from meta.base.registry import close_names
from meta.dialect.template.device_code import (
    HostFunction,
    Kernel,
    for_device,
    host_function,
    kernels_of,
    without,
    without_unnamed,
)
from meta.dialect.template.host_parser import Frame, Reader, Returned, Statement
from meta.dialect.template.host_values import (
    SCALARS,
    STREAM,
    Extents,
    HostError,
    Value,
    converted,
    plain,
)
from meta.runtime.gpu_properties import THREADS_PER_BLOCK

LIMITS = ((1 << 31) - 1, 65535, 65535)
"""The most thread blocks of a grid along each axis."""
THREAD_LIMITS = (1024, 1024, 64)
MOST_CALLS = 64
"""Host functions that call each other, one in the other, at most."""


@dataclass(frozen=True)
class LaunchCall:
    """One launch as host code states it: the kernel, its extents, bytes of dynamic shared memory,
    and its arguments, as the kernel's parameters have them: numbers, and `Pointer`.
    """

    kernel: Kernel
    grid: Extents
    block: Extents
    shared: int
    arguments: tuple[Value, ...]


class Program:
    """A source text and the call of its function.

    Attributes
    ----------
    device: the text's device code, as it is compiled. kernels: those that it defines.
    """

    def __init__(self, text: str, call: str, title: str) -> None:
        self.title, text = title, without_unnamed(text)
        self._functions: dict[str, tuple[HostFunction, Statement]] = {}
        self.kernels = kernels_of(text)
        reader = Reader(call, f"{title}, the call")
        self._call = reader.block()
        places, waiting = [], [*sorted(reader.called)]
        while waiting:
            name = waiting.pop()
            if name in self._functions:
                continue
            found = host_function(text, name)
            if found is None:
                raise self._absent(name, text)
            function, place = found
            inner = Reader(function.body, f"{title}, {name}", function.line)
            self._functions[name] = function, inner.block()
            places.append(place)
            waiting += sorted(inner.called)
        self.device = for_device(without(text, places))

    def _absent(self, name: str, text: str) -> HostError:
        if name in self.kernels:
            return HostError(
                f"{self.title}: the kernel {name!r} is called, not launched",
                hint=f"{name}<<<blocks, threads>>>(...);",
            )
        return HostError(
            f"{self.title}: no function of the host is called {name!r}",
            hint=f"define it in the source text: void {name}(...) {{ ... }}",
        )

    def launches(self, given: dict[str, Value], types: dict[str, str]) -> list[LaunchCall]:
        """Return what a call launches; ``given``: the names that its text uses, and their values.

        HostError for what host code does wrongly: a name that there is not, a number that its type
        does not hold, a pointer of another type, a launch that no GPU takes.
        """
        found: list[LaunchCall] = []
        launch = partial(self._launch, found)
        self._run(self._call, dict(given), dict(types), launch, 0)
        return found

    def _run(
        self,
        body: Statement,
        variables: dict[str, Value],
        types: dict[str, str],
        launch: partial[None],
        depth: int,
    ) -> None:
        def call(name: str, values: list[Value], where: str) -> None:
            if depth == MOST_CALLS:
                raise HostError(f"{where}: {name!r} calls itself")
            function, inner = self._functions[name]
            if len(values) != len(function.parameters):
                raise HostError(
                    f"{where}: {name!r} is called with {len(values)} arguments",
                    expected=f"{len(function.parameters)}: {_written(function.parameters)}",
                )
            bound = {
                n: converted(v, t, f"{where}, argument {n!r} of {name!r}")
                for v, (t, n) in zip(values, function.parameters, strict=True)
            }
            known = {n: t for t, n in function.parameters}
            self._run(inner, bound, known, launch, depth + 1)

        try:
            body(Frame(variables, launch, call, types))
        except Returned:
            return

    def _launch(
        self, found: list[LaunchCall], name: str, how: list[Value], values: list[Value], where: str
    ) -> None:
        kernel = self.kernels.get(name)
        if kernel is None:
            near = close_names(name, self.kernels)
            raise HostError(
                f"{where}: the source defines no kernel {name!r}",
                expected=f"one of {', '.join(self.kernels) or '(none)'}",
                hint=f"did you mean {near[0]!r}?" if near else "__global__ void name(...) { ... }",
            )
        if kernel.is_template:
            raise HostError(
                f"{where}: {name!r} is a C++ template, of which nothing is compiled by itself",
                hint="write the type by the template language: {{ x.type }}",
            )
        if kernel.is_nested:
            raise HostError(
                f"{where}: {name!r} is defined in a named namespace, where no launch finds it",
                hint="define it outside: it has its own source text",
            )
        grid, block = (converted(v, "dim3", where) for v in how[:2])
        shared = converted(how[2], "uint32_t", where) if len(how) > 2 else 0
        if len(how) > 3 and how[3] != STREAM:
            raise HostError(f"{where}: {name!r} is launched on another stream", expected=STREAM)
        _check_extents(name, grid, block, kernel, where)
        if len(values) != len(kernel.parameters):
            raise HostError(
                f"{where}: the kernel {name!r} is launched with {len(values)} arguments",
                expected=f"{len(kernel.parameters)}: {_written(kernel.parameters)}",
            )
        arguments = []
        for value, (type_, own) in zip(values, kernel.parameters, strict=True):
            place = f"{where}, argument {own!r} of {name!r}"
            if not plain(type_).endswith("*") and plain(type_) not in SCALARS:
                raise HostError(
                    f"{place}: a launch cannot pass a {type_!r}",
                    expected=f"a pointer, or one of {', '.join(SCALARS)}",
                )
            arguments.append(converted(value, type_, place))
        found.append(LaunchCall(kernel, grid, block, shared, tuple(arguments)))


def _written(parameters: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{type_} {name}" for type_, name in parameters)


def _check_extents(name: str, grid: Extents, block: Extents, kernel: Kernel, where: str) -> None:
    """Raise HostError for a launch that no GPU takes."""
    threads = block.x * block.y * block.z
    wrong = ""
    if not all(0 < n <= most for n, most in zip(grid, LIMITS, strict=True)):
        wrong = f"a grid of {tuple(grid)} thread blocks"
    elif not all(0 < n <= most for n, most in zip(block, THREAD_LIMITS, strict=True)):
        wrong = f"thread blocks of {tuple(block)} threads"
    elif threads > (kernel.threads or THREADS_PER_BLOCK):
        wrong = f"thread blocks of {threads} threads"
    if wrong:
        raise HostError(
            f"{where}: {name!r} is launched with {wrong}",
            expected=f"from 1 to {LIMITS} blocks of 1 to {kernel.threads or THREADS_PER_BLOCK} "
            "threads",
        )
