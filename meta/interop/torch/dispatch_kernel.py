"""What runs in place of PyTorch's kernel of an enabled overload.

A call builds one key of its arguments and finds a plan: whose kernel runs it. A plan is kept with
the plans of eager calls, so that `prefer`, `only` and `exclude` choose here as they do there, and
kernels that are registered later are asked. While a kernel of ours runs, and while a plan is made,
calls of this thread go to PyTorch's kernels: those of our dialect "torch" are made of them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from meta.base import config
from meta.base.bounded_cache import bounded_insert
from meta.base.call_context import context
from meta.base.errors import MetaError
from meta.dialect.core.backend_errors import backend_error, passes
from meta.dialect.core.preference import DECISIONS
from meta.frontend.aten.registry import AtenError, name_of
from meta.frontend.core import Unconvertible
from meta.interop.torch.overloads import Overload, has_kernel
from meta.interop.torch.program import Program, TracedOverload, program_of, specs_of, trace_overload
from meta.interop.torch.report import Tally, tally_of
from meta.vm.eager.decided_call import KNOBS

SCOPES = "meta.interop.torch"
"""The name of `current_scopes` among what PyTorch hands on to the threads of backward passes."""


class _ThreadState(threading.local):
    """Whether a kernel of ours, or what makes a plan, runs in this thread."""

    inside = False


_thread_state = _ThreadState()


class Plan:
    """Who runs the calls of one key.

    Attributes
    ----------
    run: of the tensors of a call; None where PyTorch runs it. tally: where calls are counted.
    always: whether nothing else is to be asked. capturable: whether a CUDA graph can hold it.
    arguments: what PyTorch's kernel is given, of the arguments; None where these are it.
    """

    __slots__ = ("always", "arguments", "capturable", "run", "tally")

    def __init__(self, tally: Tally, program: Program | None = None) -> None:
        self.tally = tally
        self.run = None if program is None else program.kernel()
        self.capturable = program is None or program.capturable
        self.always = tally.why is None and self.capturable
        self.arguments: Callable[[Sequence[Any]], Sequence[Any]] | None = None


class Route:
    """An overload at a dispatch key while it is enabled.

    Attributes
    ----------
    native: PyTorch's kernel. everywhere: how many scopes enable it in all threads; strict: how many
    of these refuse what is not served. kind: of several results, tuple or list. lazy: whether
    tensors may come here whose memory has not their values, such as negated ones; conjugated: only
    conjugated ones.
    """

    __slots__ = (
        *("conjugated", "everywhere", "key", "kind", "lazy", "name", "native", "overload"),
        "strict",
    )

    def __init__(self, overload: Overload, key: str) -> None:
        self.overload, self.key, self.name = overload, key, name_of(overload)
        self.native = Native(overload, key)
        self.everywhere = self.strict = 0
        returns = overload._schema.returns
        listed = str(returns[0].type) != "Tensor"
        self.kind = list if listed else tuple if len(returns) > 1 else None
        # PyTorch computes such values before, but for overloads that have kernels for them.
        self.conjugated = has_kernel(overload, "Conjugate")
        self.lazy = has_kernel(overload, "Negative") or (
            has_kernel(overload, "ZeroTensor") and torch.Tag.pointwise not in overload.tags
        )

    def may_be_lazy(self, tensors: Sequence[Tensor]) -> bool:
        """Whether one of the tensors may have other values than its memory."""
        return self.lazy or (self.conjugated and any(t.is_complex() for t in tensors))


def current_scopes() -> tuple[Any, ...]:
    """Return what is enabled for this thread, and the backward passes that it starts, alone."""
    if not torch._C._is_key_in_tls(SCOPES):
        return ()
    found: tuple[Any, ...] = torch._C._get_obj_in_tls(SCOPES)
    return found


def set_scopes(scopes: tuple[Any, ...]) -> None:
    """Set what `current_scopes` returns in this thread, and in backward passes that it starts."""
    if _takes_references():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(scopes))
    torch._C._stash_obj_in_tls(SCOPES, scopes)


@cache
def _takes_references() -> bool:
    """Whether PyTorch keeps an object for a thread without a reference of its own: before 2.13 it
    takes the caller's for it, and frees the object while that is still in use.
    """
    kept = (object(),)
    before = sys.getrefcount(kept)
    torch._C._stash_obj_in_tls(f"{SCOPES}, tried", kept)
    takes = sys.getrefcount(kept) == before
    if takes:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    return takes


def override(route: Route) -> Callable[..., Any]:
    """Return the kernel to register for a route. Its time is that of every call: see
    `benchmarks/overhead.py`.
    """
    here, current, native, call = _thread_state, context.get, route.native, route.native.call
    default_dtype = torch.get_default_dtype
    # PyTorch calls the kernels of CPUs only where all tensors are there.
    several = route.key != "CPU"

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if here.inside or not (route.everywhere or _scopes_of(route)):
            return native(args, kwargs)
        key: list[Any] = [route, default_dtype()]
        for a in args:
            cls = a.__class__
            if cls is Tensor or cls is Parameter:
                key += (a.shape, a.dtype, a.stride())
                if several:
                    key.append(a.device)
            elif cls in _PLAIN:
                key += (cls, a)
            else:
                _add(key, a)
        if kwargs:
            for name, a in kwargs.items():
                key.append(name)
                _add(key, a)
        meaning = current()
        if meaning.knobs is not None:
            key.append(tuple([config.get(knob) for knob in KNOBS]))
        plans, known = meaning.preference.plans, tuple(key)
        try:
            plan = plans.get(known)
        except TypeError:
            return _Call(route, args, kwargs).refused("an argument is no plain value")
        if plan is None or not plan.always:
            return _Call(route, args, kwargs).carefully(plans, known, plan)
        plan.tally.count += 1
        run, change = plan.run, plan.arguments
        # PyTorch's kernel may call overloads that are enabled: it was chosen as a whole.
        here.inside = True
        try:
            if run is not None:
                return run(_tensor_arguments(args, kwargs))
            if change is not None:
                args = change(args)
            return call(*args, **kwargs) if kwargs else call(*args)
        except Exception as error:
            if run is None:
                raise
            raise _raised_error(error, plan.tally) from error
        finally:
            here.inside = False

    return kernel


def _scopes_of(route: Route) -> list[Any]:
    return [scope for scope in current_scopes() if route.name in scope.names]


def _raised_error(error: Exception, tally: Tally) -> Exception:
    """Return the error to raise from one of a kernel."""
    if passes(error):
        return error
    return backend_error(error, "cannot run a kernel", op=tally.name, dialect=tally.dialect)


_PLAIN = frozenset({int, bool, str, type(None), torch.dtype, torch.device, torch.layout})
"""Classes whose equal values mean the same, beside the class."""


def _add(key: list[Any], a: Any) -> None:
    """Add an argument to the key of a call."""
    cls = a.__class__
    if isinstance(a, Tensor):
        key += (a.shape, a.dtype, a.stride(), a.device)
    elif cls is list or cls is tuple:
        key += (cls, len(a))
        for part in a:
            if part.__class__ in _PLAIN:
                key += (part.__class__, part)
            else:
                _add(key, part)
    else:
        # Of numbers, 0.0 and -0.0 are equal, and NaN is not equal to itself.
        key += (cls, repr(a) if cls is float or cls is complex else a)


def _tensor_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors of a call in the order of its arguments, none of which requires a
    gradient: autograd stands above.
    """
    found: list[Tensor] = []
    for a in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(a, Tensor):
            found.append(a.detach() if a.requires_grad else a)
        elif a.__class__ is list or a.__class__ is tuple:
            found += _tensor_arguments(a, {})
    return found


class _Call:
    """A call of an enabled overload, as PyTorch's dispatcher makes it."""

    __slots__ = ("args", "kwargs", "route")

    def __init__(self, route: Route, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.route, self.args, self.kwargs = route, args, kwargs

    def native(self) -> Any:
        with _native_only():
            return self.route.native(self.args, self.kwargs)

    def refused(self, why: str) -> Any:
        """Let PyTorch run the call, and count why."""
        return self.counted(tally_of(self.route.name, why=why), self.native)

    def counted(self, tally: Tally, run: Callable[[], Any]) -> Any:
        """Run the call and count it; AtenError for a refusal where that is asked for."""
        if tally.why is not None:
            own = any(scope.strict for scope in _scopes_of(self.route))
            if own or self.route.strict:
                raise AtenError(
                    f"a call of {tally.name} is not served",
                    found=tally.why,
                    hint="enable(strict=False) lets PyTorch's own kernel run it",
                )
        tally.count += 1
        return run()

    def is_captured(self) -> bool:
        """Whether a CUDA graph is being recorded."""
        return self.route.key == "CUDA" and torch.cuda.is_current_stream_capturing()

    def carefully(self, plans: dict[Any, Any], known: Any, plan: Plan | None) -> Any:
        """Run the call where more than its key decides, or nothing was decided yet."""
        tensors = _tensor_arguments(self.args, self.kwargs)
        lazy = self.route.may_be_lazy(tensors)
        if lazy and any(t.is_conj() or t.is_neg() or t._is_zerotensor() for t in tensors):
            return self.refused("the values of a tensor are computed when it is read")
        if plan is None:
            if self.is_captured():
                return self.refused("a CUDA graph is captured when it is met for the first time")
            plan, result = self.planned()
            plan.always &= not lazy
            bounded_insert(plans, known, plan, DECISIONS)
            if plan.run is None:
                return self.counted(plan.tally, lambda: result)
        run = plan.run
        if run is None:
            return self.counted(plan.tally, self.native)
        if not plan.capturable and self.is_captured():
            return self.refused("a CUDA graph cannot hold its kernel")
        with _native_only():
            try:
                return self.counted(plan.tally, lambda: run(tensors))
            except Exception as error:
                raise _raised_error(error, plan.tally) from error

    def planned(self) -> tuple[Plan, Any]:
        """Return who runs calls of this key, and PyTorch's result where that is PyTorch."""
        name, kind = self.route.name, self.route.kind
        call, failure = self._attempt(
            lambda: trace_overload(self.route.overload, self.args, self.kwargs)
        )
        # What PyTorch says is wrong with a call is what the user reads.
        result = self.native()
        program: Program | None = None
        if isinstance(call, TracedOverload):
            program, failure = self._attempt(lambda: program_of(call, specs_of(result), kind))
        if isinstance(failure, Unconvertible | MetaError):
            return Plan(tally_of(name, why=str(failure.args[0]))), result
        if failure is not None:
            raise failure
        assert program is not None
        tally = tally_of(name, dialect=", ".join(program.dialects))
        if set(program.dialects) - {"torch"}:
            return Plan(tally, program), None
        plan = Plan(tally)
        plan.arguments = self.route.native.arguments(self.args)
        plan.always &= plan.arguments is None or not self.route.native.are_weak(self.args)
        return plan, result

    def _attempt(self, make: Callable[[], Any]) -> tuple[Any, Exception | None]:
        """Return what is made, or what is raised."""
        with _native_only():
            try:
                return make(), None
            except Exception as error:
                return None, error


@contextmanager
def _native_only() -> Iterator[None]:
    """Let calls of this thread go to PyTorch's kernels."""
    _thread_state.inside = True
    try:
        yield
    finally:
        _thread_state.inside = False


# `Native`: the kernel of PyTorch's that an enabled overload has below ours.
#
# A number in the place of a tensor, as in ``x * 2``, comes to a kernel of Python as the number,
# and PyTorch's own kernel does not take one. It is given a tensor without axes in such a dtype
# that it counts as the number does: where it does not raise the kind of the result, the widest of
# its kind, else PyTorch's default. Among tensors without axes, which would count as much as it
# does, these are seen with one axis meanwhile.


_NUMBERS = (bool, int, float, complex)
_MAX_NUMBERS = 1024
"""Numbers whose tensors are kept."""


class Native:
    """Calls PyTorch's kernel of an overload for one dispatch key, as it was when this was made."""

    __slots__ = ("call", "kernel", "places")

    def __init__(self, overload: Overload, key: str) -> None:
        self.kernel = torch.library.get_kernel(overload, key)
        # PyTorch gives the keys that are left to a kernel: below autograd these are of the device.
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        self.call: Callable[..., Any] = partial(self.kernel.call_boxed, keys)
        arguments = overload._schema.arguments
        # Where a number may stand for a tensor.
        self.places = tuple(
            i for i, a in enumerate(arguments) if str(a.type) == "Tensor" and not a.kwarg_only
        )

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what PyTorch returns."""
        change = self.arguments(args)
        if change is None:
            return self.call(*args, **kwargs)
        if not self.are_weak(args):
            return self.call(*change(args), **kwargs)
        tensors = (a.reshape(1) if isinstance(a, Tensor) else a for a in args)
        return self.call(*change(tuple(tensors)), **kwargs).reshape(())

    def arguments(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        """Return what makes the arguments of PyTorch's kernel of arguments of this kind, with the
        same numbers; None where they need no change.
        """
        numbers = [p for p in self.places if p < len(args) and args[p].__class__ in _NUMBERS]
        if not numbers:
            return None
        kind = max((_kind(a.dtype) for a in args if isinstance(a, Tensor)), default=-1)
        given = {place: _tensor_of(args[place], kind) for place in numbers}
        if len(args) == 2 and numbers == [1]:  # the most frequent, as `x * 2`
            second = given[1]
            return lambda args: (args[0], second)
        return lambda args: [given.get(place, a) for place, a in enumerate(args)]

    def are_weak(self, args: Sequence[Any]) -> bool:
        """Whether no tensor has an axis, and would count more than a number in its place."""
        return not any(a.ndim for a in args if isinstance(a, Tensor))


def _kind(dtype: torch.dtype) -> int:
    """Return whether a dtype is bool (0), integer (1), floating point (2) or complex (3)."""
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


_WIDEST = (torch.bool, torch.int64, torch.float64, torch.complex128)
_tensors: dict[Any, Tensor] = {}


def _tensor_of(value: Any, kind: int) -> Tensor:
    """Return a number as a tensor without axes, beside tensors of a kind at most."""
    own = _NUMBERS.index(type(value))
    dtype = _WIDEST[own]
    if own >= 2 and kind < 2:
        default = torch.get_default_dtype()
        dtype = default if own == 2 else default.to_complex()
    key = (type(value), repr(value), dtype)
    found = _tensors.get(key)
    if found is None:
        found = bounded_insert(_tensors, key, torch.tensor(value, dtype=dtype), _MAX_NUMBERS)
    return found
