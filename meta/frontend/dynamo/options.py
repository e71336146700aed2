"""The options of `torch.compile(model, backend="meta", options={...})`, in one object."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from meta.base.errors import ArgumentError, UnknownName
from meta.base.registry import nearest
from meta.cost.chooser import measured
from meta.dialect.core import prefer

_MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},  # graphs are recorded in any mode, where they can be
    "max-autotune": {"tune": math.inf},
    "max-autotune-no-cudagraphs": {"tune": math.inf, "cuda_graph": False},
}


@dataclass(frozen=True)
class Options:
    """What a user may say of a compilation.

    Attributes
    ----------
    fallback: "torch": an operator of PyTorch that has no converter is called in PyTorch, from
        within the program; "error": an AtenError lists all of these.
    cuda_graph: as for `meta.vm.compile`; on the CPU it means nothing. dispatch: the dialects that
    are preferred, the first one most. memory_budget: as for `meta.vm.compile`. tune: seconds within
    which kernels that were never measured are, for each graph, as for `meta.vm.compile`.
    """

    fallback: Literal["torch", "error"] = "torch"
    cuda_graph: bool | None = None
    dispatch: tuple[str, ...] = ()
    memory_budget: int | None = None
    tune: float | None = None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Prefer the dialects of ``dispatch``, and measure if ``tune`` says so, in a block."""
        with ExitStack() as stack:
            if self.dispatch:
                stack.enter_context(prefer(*self.dispatch))
            if self.tune is not None:
                stack.enter_context(measured(self.tune))
            yield


def read_options(mode: str | None, given: Mapping[str, Any] | None) -> Options:
    """Return the options of a call of `torch.compile`.

    Raises UnknownName for an option that there is not, ArgumentError for a value that it does not
    take, and for a mode that means nothing here.
    """
    if mode is not None and mode not in _MODES:
        raise ArgumentError(
            "this mode of torch.compile means nothing to the backend 'meta'",
            expected=", ".join(map(repr, _MODES)),
            found=repr(mode),
            hint="options={...} has what can be said besides: docs/howto/torch_compile.md",
        )
    known = {field.name for field in fields(Options)}
    options = Options(**_MODES[mode or "default"])
    for name, value in (given or {}).items():
        if name not in known:
            raise UnknownName(
                f"the backend 'meta' has no option {name!r}",
                expected=", ".join(sorted(known)),
                hint=nearest(name, known),
            )
        options = replace(options, **{name: _read(name, value)})
    return options


def _read(name: str, value: Any) -> Any:
    """Return the value of an option; ArgumentError for one that it does not take."""
    if name == "dispatch":
        names = (value,) if isinstance(value, str) else value
        if isinstance(names, tuple | list) and all(isinstance(n, str) for n in names):
            with prefer(*names):  # an unknown name is an error, now
                return tuple(names)
        raise _refused(name, "the name of a dialect, or a list of names", value)
    if name == "fallback" and value not in ("torch", "error"):
        raise _refused(name, "'torch' or 'error'", value)
    if name == "cuda_graph" and not (value is None or isinstance(value, bool)):
        raise _refused(name, "True, False or None", value)
    if name == "memory_budget" and not (value is None or type(value) is int):
        raise _refused(name, "a number of bytes, or None", value)
    if name == "tune":
        number = type(value) in (int, float) and value >= 0
        if not (value is None or number):
            raise _refused(name, "seconds, or None", value)
    return value


def _refused(name: str, expected: str, value: Any) -> ArgumentError:
    return ArgumentError(f"the option {name!r} is not this", expected=expected, found=repr(value))
