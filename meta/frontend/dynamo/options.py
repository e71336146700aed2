"""The options of `torch.compile(model, backend="meta", options={...})`, in one object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
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
    which kernels that were never measured are, for each graph, as for `meta.vm.compile`. freeze: as
    for `meta.vm.compile`, in graphs without a gradient.
    """

    fallback: Literal["torch", "error"] = "torch"
    cuda_graph: bool | None = None
    dispatch: tuple[str, ...] = ()
    memory_budget: int | None = None
    tune: float | None = None
    freeze: bool = False

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Prefer the dialects of ``dispatch``, and measure if ``tune`` says so, in a block."""
        with ExitStack() as stack:
            if self.dispatch:
                stack.enter_context(prefer(*self.dispatch))
            if self.tune is not None:
                stack.enter_context(measured(self.tune))
            yield


_TAKES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "fallback": ("'torch' or 'error'", lambda v: v in ("torch", "error")),
    "cuda_graph": ("True, False or None", lambda v: v is None or isinstance(v, bool)),
    "dispatch": (
        "the name of a dialect, or a list of names",
        lambda v: isinstance(v, str | tuple | list) and all(isinstance(name, str) for name in v),
    ),
    "memory_budget": ("a number of bytes, or None", lambda v: v is None or type(v) is int),
    "tune": ("seconds, or None", lambda v: v is None or (type(v) in (int, float) and v >= 0)),
    "freeze": ("True or False", lambda v: isinstance(v, bool)),
}
"""What each option takes, in words and as a test."""


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
    options = Options(**_MODES[mode or "default"])
    for name, value in (given or {}).items():
        if name not in _TAKES:
            raise UnknownName(
                f"the backend 'meta' has no option {name!r}",
                expected=", ".join(sorted(_TAKES)),
                hint=nearest(name, _TAKES),
            )
        expected, takes = _TAKES[name]
        if not takes(value):
            what = f"the option {name!r} is not this"
            raise ArgumentError(what, expected=expected, found=repr(value))
        if name == "dispatch":
            value = (value,) if isinstance(value, str) else tuple(value)
            with prefer(*value):  # an unknown name is an error, now
                pass
        options = replace(options, **{name: value})
    return options
