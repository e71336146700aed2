"""Reading a function of ``@triton.jit``: its parameters, where it is, and what was put around it.

``@triton.autotune`` and ``@triton.heuristics`` are read and taken off: their configurations and
functions become ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from meta.base.errors import RegistrationError
from meta.base.source import Span, definition_span

NO_DEFAULT = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Attributes
    ----------
    constexpr: whether it is annotated ``tl.constexpr``. word: the type of its annotation, such as
    "i64", empty without one. default: `NO_DEFAULT` if it has none. specialized: whether Triton may
    compile for its value: for 1, and for multiples of 16. aligned: the latter.
    """

    name: str
    constexpr: bool
    word: str
    default: Any
    specialized: bool
    aligned: bool


@dataclass(frozen=True)
class Source:
    """A kernel's function.

    jit: what compiles; of a function that was made under TRITON_INTERPRET=1, what would. configs,
    key, heuristics: what ``@triton.autotune`` and ``@triton.heuristics`` above it state.
    """

    jit: JITFunction
    interpreted_only: bool = False
    configs: tuple[Any, ...] = ()
    key: tuple[str, ...] = ()
    heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.jit.__name__)

    @property
    def site(self) -> Span:
        """Where the function is written."""
        return definition_span(self.jit.fn)

    @property
    def text(self) -> str:
        """The function as it is written."""
        return "".join(self.jit.raw_src)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in order."""
        return tuple(
            Parameter(
                p.name,
                p.is_constexpr,
                "" if p.is_constexpr else p.annotation_type,
                p.default if p.has_default else NO_DEFAULT,
                not p.do_not_specialize,
                not (p.do_not_specialize or p.do_not_specialize_on_alignment),
            )
            for p in self.jit.params
        )


def read(function: Any) -> Source:
    """Return what a kernel's function is; RegistrationError if it is none of ``@triton.jit``."""
    configs: tuple[Any, ...] = ()
    key: tuple[str, ...] = ()
    heuristics: dict[str, Any] = {}
    whole = function
    while isinstance(function, Autotuner | Heuristics):
        if isinstance(function, Heuristics):
            heuristics = {**function.values, **heuristics}
        else:
            configs, key = _configs(function), tuple(function.keys)
        function = function.fn
    if isinstance(function, InterpretedFunction):
        return Source(JITFunction(function.fn), True, configs, key, heuristics)
    if not isinstance(function, JITFunction):
        raise RegistrationError(
            "a kernel of Triton is a function of triton.jit",
            expected="@triton.jit right below the decorator",
            found=repr(whole),
            hint="a plain function on torch tensors is a kernel of any other Dialect",
        )
    return Source(function, False, configs, key, heuristics)


def _configs(tuner: Autotuner) -> tuple[Any, ...]:
    """Return the configurations of ``@triton.autotune``; what it does besides has no counterpart
    here.
    """
    more = [
        name
        for name, used in (
            ("reset_to_zero", tuner.reset_to_zero),
            ("restore_value", tuner.restore_value),
            ("prune_configs_by", tuner.early_config_prune or tuner.perf_model),
        )
        if used
    ]
    if more:
        raise RegistrationError(
            f"@triton.autotune states {', '.join(more)}, which measured dispatch does not have",
            expected="configs and key",
            hint="results are fresh memory in each run; a function of the call as configs= leaves "
            "out what does not suit it",
            span=definition_span(_inner(tuner)),
        )
    return tuple(tuner.configs)


def _inner(function: Any) -> Any:
    while hasattr(function, "fn"):
        function = function.fn
    return function
