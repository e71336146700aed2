"""`CallContext`: what decides the meaning of an operator call, in one context variable.

Blocks change it, each on its own floor: a call handler (tracing, mixed precision), knobs
(`base/config.py`), a preference for dialects (`dialect/core/preference.py`), whether gradients are
recorded, and what else `CallContext` lists. They stand in one object, so that an eager call, which
has a microsecond, asks once: `alone` and `pairs` have the kernels that it may run without asking
anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Protocol

_SETTINGS = (
    "handler",
    "knobs",
    "preference",
    "recording",
    "marks_copies",
    "cast_rules",
    "random",
    "mesh",
    "sharded_trace",
    "scope",
    "compiles",
    "chooser",
    "numbers",
    "devices",
    "defers_values",
    "transposes",
    "only_read",
)


class CallContext:
    """What holds in a block; it is not changed, but replaced for an inner block.

    Attributes
    ----------
    handler: gives calls their meaning; None: they are run at once. knobs: overridden ones; None:
    none is. preference: the user's choice of dialects; None until their floor is imported.
    recording: whether calls are recorded for `backward` (`runtime/no_gradient.py`).
    marks_copies: whether copies of parts are marked (`runtime/view_copies.py`).
    cast_rules: by operator, the rules of mixed precision of a block (`amp/cast_rule.py`).
    random: which random keys are drawn (`runtime/random.py`); None for the process's.
    mesh: of a simulated rank (`runtime/mesh.py`); None for the process's.
    sharded_trace: how arrays of many ranks are traced (`model/sharded_trace.py`); None: as they
    are.
    scope: for which chips what is registered is (`dialect/core/scope.py`); None: for all.
    compiles: whether kernels that are chosen are about to run, so that backends may begin to
    compile them (`dialect/core/warmup.py`).
    chooser: what chooses among the dialects that are left (`dialect/core/chooser.py`); None:
    `Default.chooser`. numbers: what answers the questions of the kernel that is being made
    (`dialect/core/knobs.py`); None: nothing does. devices: the default ones of the blocks around
    (`base/device.py`). defers_values: whether initial values of models are drawn later, if they are
    not loaded (`runtime/deferred_values.py`). transposes: whether gradients are computed to be
    transposed, which goes forwards (`grad/core/transforms.py`). only_read: addresses of storages
    that the CUDA graph that is being recorded reads and does not write (`runtime/allocate.py`).
    alone, pairs: by operator, what runs a call of one array, by its key, and of two operands, by
    their keys: the key alone where both have the same, as most have. They are the preference's
    where nothing else is to be asked, else empty dicts, which stay empty.
    """

    __slots__ = (*_SETTINGS, "alone", "pairs")
    handler: Any
    knobs: dict[str, Any] | None
    preference: Any
    recording: bool
    marks_copies: bool
    cast_rules: Mapping[Any, Any]
    random: Any
    mesh: Any
    sharded_trace: Any
    scope: Any
    compiles: bool
    chooser: Any
    numbers: Any
    devices: tuple[Any, ...]
    defers_values: bool
    transposes: bool
    only_read: frozenset[int]

    def __init__(self) -> None:
        self.handler = self.knobs = self.preference = None
        self.recording = self.marks_copies = True
        self.cast_rules = MappingProxyType({})
        self.random = self.mesh = self.sharded_trace = self.scope = None
        self.chooser = self.numbers = None
        self.compiles = self.defers_values = self.transposes = False
        self.devices = ()
        self.only_read = frozenset()
        self.alone: dict[Any, Any] = {}
        self.pairs: dict[Any, Any] = {}

    def changed(self, settings: Mapping[str, Any]) -> CallContext:
        """Return a context with other values of some attributes."""
        new = _new(CallContext)
        for name in _SETTINGS:
            setattr(new, name, settings[name] if name in settings else getattr(self, name))
        plain = new.handler is None and new.knobs is None and new.preference is not None
        new.alone = new.preference.alone if plain else {}
        new.pairs = new.preference.pairs if plain else {}
        return new


_new = object.__new__
_default = CallContext()
context: ContextVar[CallContext] = ContextVar("meta_call_context", default=_default)


def set_default_preference(preference: Any) -> None:
    """Set the preference of contexts that no block has changed, in every thread."""
    _default.preference = preference
    _default.alone, _default.pairs = preference.alone, preference.pairs


def set_default_chooser(chooser: Any) -> None:
    """Set what chooses in contexts that no block has changed, in every thread."""
    Default.chooser = chooser


@contextmanager
def override_context(**settings: Any) -> Iterator[None]:
    """Replace attributes of the context in a block, in this thread (or task) only."""
    token = context.set(context.get().changed(settings))
    try:
        yield
    finally:
        context.reset(token)


# The call protocol. Eager execution, tracing and pattern building are handlers. A gradient rule or
# a model body is written once, as plain calls, and works under each of them.


class CallHandler(Protocol):
    """Gives a call its meaning.

    ``op`` is a base operator or, except for the default handler, a dialect's (which has the same
    ``schema``, ``infer``, ``call_values``, ``random`` and ``promotes``). ``args`` and ``kwargs``
    are as the caller wrote them.
    """

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class Default:
    """Holds what the VM floor installs: the handler of threads that set none, which is eager
    execution; what records a call for `backward` and returns its result; and what returns the
    error to raise for a call from what its kernel raised. ``complete`` imports the rest of the
    package, which the package itself installs. ``chooser``: see `set_default_chooser`.
    """

    handler: CallHandler
    recorded: Callable[[Any, tuple[Any, ...], Any], Any]
    failed: Callable[[Any, tuple[Any, ...], Exception], Exception]
    complete: Callable[[], None]
    chooser: Any


def current() -> CallHandler | None:
    """Return what gives calls their meaning here; None: they are run at once."""
    handler: CallHandler | None = context.get().handler
    return handler


def mixed_precision() -> bool:
    """Whether a block of mixed precision casts the arguments of calls that are made now."""
    return bool(getattr(current(), "casts", False))


def use(handler: CallHandler | None) -> AbstractContextManager[None]:
    """Let ``handler`` (None: the default) give calls their meaning in this block."""
    return override_context(handler=handler)
