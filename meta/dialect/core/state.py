"""State: what an `init` of a dialect operator makes once per device, for the operator's kernel and
for that of its gradient: descriptors of a library, tables, a mask.

`init` names what it needs: arguments of the operator (a tensor is given as its type, several as a
tuple of types), and ``device``. These values and the device are the key: one state serves all calls
that agree in them, two layers and two threads alike. Therefore it has to follow from them alone,
and kernels read it. What one call hands to its own gradient is a result of the operator, as the
statistics of `layer_norm_train` are.

A state is made when a kernel first needs it, is held by the kernels (`OpEnv`) that use it and is
released with the last of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from meta.base.device import Device
from meta.base.errors import DeviceError, RegistrationError
from meta.base.source import definition_span
from meta.op.core.call import CallValues, cache_key
from meta.op.core.op import Op
from meta.op.core.registration import parameters
from meta.runtime.ndarray import ndarray

if TYPE_CHECKING:
    from meta.dialect.core.openv import OpEnv

DEVICE = "device"
_UNMADE: Any = object()


class State:
    """One state: on one device, made when it is first asked for.

    Attributes
    ----------
    owner: the name of the dialect operator whose `init` makes it. device: where it is.
    """

    __slots__ = ("__weakref__", "_lock", "_make", "_value", "device", "owner")

    def __init__(self, owner: str, device: Device, make: Callable[[], Any]) -> None:
        self.owner, self.device, self._make = owner, device, make
        self._value: Any = _UNMADE
        self._lock = threading.Lock()

    @property
    def made(self) -> bool:
        """Whether `init` has run."""
        return self._value is not _UNMADE

    def get(self, device: Device) -> Any:
        """Return what `init` made, for a kernel on ``device``; DeviceError if it is on another."""
        if device != self.device:
            raise DeviceError(
                f"the state of {self.owner} is of another device than the call",
                expected=f"state made on {device}",
                found=f"state made on {self.device}",
                hint="each device has a state of its own: run init there",
            )
        if self._value is _UNMADE:
            with self._lock:  # others wait: it is made once
                if self._value is _UNMADE:
                    self._value = self._make()
        return self._value

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors within it, and of what has a number ``nbytes``; 0 until it is
        made. Memory that several tensors share counts once.
        """
        parts = list(_tensors_within(self._value, set())) if self.made else []
        storages = [p.untyped_storage() for p in parts if isinstance(p, torch.Tensor)]
        shared = {storage.data_ptr(): storage.nbytes() for storage in storages}
        others: list[int] = [p.nbytes for p in parts if not isinstance(p, torch.Tensor)]
        return sum(shared.values()) + sum(others)

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors within it, made now if it was not."""
        parts = _tensors_within(self.get(self.device), set())
        return [p for p in parts if isinstance(p, torch.Tensor)]

    def __repr__(self) -> str:
        return f"<state of {self.owner} on {self.device}>"


def _tensors_within(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the tensors within a value, and what says how many bytes it takes."""
    if id(value) in seen or isinstance(value, type | ModuleType):
        return
    seen.add(id(value))
    if isinstance(value, ndarray):
        yield from _tensors_within(value.tensor, seen)
    elif isinstance(value, torch.Tensor) or type(getattr(value, "nbytes", None)) is int:
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors_within(part, seen)
    elif isinstance(value, tuple | list | set | frozenset):
        for part in value:
            yield from _tensors_within(part, seen)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors_within(getattr(value, field.name, None), seen)
    elif not isinstance(value, FunctionType | MethodType):  # which lead anywhere
        for part in vars(value).values() if hasattr(value, "__dict__") else ():
            yield from _tensors_within(part, seen)


class Init:
    """How the state of a dialect operator is made, and found again.

    ``name`` is the dialect operator's, ``base`` the operator; other attributes are not public.
    """

    def __init__(self, name: str, base: Op, function: Callable[..., Any]) -> None:
        self.name, self.base, self.function = name, base, function
        self.names = parameters(function)
        self._states: WeakValueDictionary[Any, State] = WeakValueDictionary()
        self._lock = threading.Lock()
        self.check(base)

    def check(self, op: Op) -> None:
        """Raise RegistrationError unless calls of ``op`` have all that this `init` asks for."""
        known = {s.name for s in op.slots if s.kind in ("attribute", "tensor", "tensors")}
        unknown = [n for n in self.names if n not in known and n != DEVICE]
        if unknown:
            raise RegistrationError(
                f"the init of {self.name!r} asks for {unknown}, which a call of {op.name!r} does "
                "not know before it runs",
                expected=f"some of {(*sorted(known), DEVICE)}",
                span=definition_span(self.function),
            )

    def serves_gradient(self, gradient: Op) -> None:
        """Raise RegistrationError unless a call of ``gradient`` tells which forward call it belongs
        to, by arguments of the same names.
        """
        self.check(gradient)
        missing = [
            s.name
            for s in self.base.slots
            if s.name not in gradient.schema.index and not s.has_default
        ]
        if missing:
            raise RegistrationError(
                f"{gradient.name!r} cannot use the state of {self.name!r}: it does not have the "
                f"forward arguments {missing}",
                expected=f"all of {self.base.schema.names} that have no default",
                found=gradient.schema.names,
            )

    def state_for(self, call: CallValues) -> State:
        """Return the state of a call, of the operator or of its gradient."""
        given = {n: call.device if n == DEVICE else getattr(call.args, n) for n in self.names}
        key = call.device, *map(cache_key, given.values())
        with self._lock:
            found = self._states.get(key)
            if found is None:
                found = State(self.name, call.device, lambda: self.function(**given))
                self._states[key] = found
        return found

    def forward_call(self, call: CallValues) -> CallValues | None:
        """Return the forward call that a call of the gradient belongs to; None if an argument that
        it needs is None here.
        """
        places, args = call.op.schema.index, []
        for slot in self.base.slots:
            value = getattr(call.args, slot.name) if slot.name in places else slot.default
            if value is None and not slot.optional and slot.kind != "attribute":
                return None
            args.append(value)
        return self.base.call_values(tuple(args), call.device)


def with_state(make: Callable[[CallValues], OpEnv], init: Init) -> Callable[[CallValues], OpEnv]:
    """Return a maker whose kernels are given their state, in front of the run-time values."""

    def made(call: CallValues) -> OpEnv:
        return give_state(make(call), init.state_for(call), call.device)

    return made


def give_state(env: OpEnv, state: State, device: Device) -> OpEnv:
    """Let a kernel, whose first value is its state, take the run-time values only."""

    def wrapped(run: Callable[..., Any]) -> Callable[..., Any]:
        def given(*values: Any) -> Any:
            return run(state.get(device), *values)

        return given

    return _with(env.wrap(wrapped), state)


def _with(env: OpEnv, state: State) -> OpEnv:
    """Note the state of a kernel that is given it, also in other configurations."""
    configs = env.configs
    if configs is not None:
        env.configs = replace(configs, made=lambda config: _with(configs.made(config), state))
    env.state = state
    # It would go around the state, as a kernel that is kept in a file would.
    env.fresh = None
    return env
