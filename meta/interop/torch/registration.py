"""`enable`: registers our operators with PyTorch's dispatcher, and takes them out again.

PyTorch has one registration for all threads. It is made when the first scope wants an overload and
removed with the last one, so that it costs nothing afterwards. It is under the dispatch key of a
kind of device.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import torch

from meta.base.device import BUILT_IN
from meta.base.errors import ArgumentError, DeviceError
from meta.base.registry import nearest
from meta.dialect.vendors.detect import active, verdicts
from meta.frontend.aten.registry import overload_of
from meta.interop.torch.dispatch_kernel import Route, current_scopes, override, set_scopes
from meta.interop.torch.overloads import is_reachable, select_overloads

_lock = threading.RLock()
_routes: dict[tuple[str, str], tuple[Route, Any, list[Enabled]]] = {}
_removed_kernels: deque[Any] = deque(maxlen=64)
"""Kernels that were removed last: another thread may still be inside of one."""


class Enabled:
    """Overloads that are enabled until `disable` is called, or the ``with`` block ends.

    ``names``: the overloads. ``devices``: the kinds of devices. ``thread``, ``strict``: as given to
    `enable`. ``active``: whether they are still enabled by this object.

    >>> import meta.interop.torch
    >>> with meta.interop.torch.enable(["softmax"], device="cpu") as enabled:
    ...     enabled.active, enabled.devices
    (True, ('cpu',))
    >>> enabled.active
    False
    """

    def __init__(
        self, names: Sequence[str], devices: Sequence[str], thread: bool, strict: bool
    ) -> None:
        self.names, self.devices = frozenset(names), tuple(devices)
        self.thread, self.strict = thread, strict
        self.active = False
        self._owner = threading.get_ident()

    def _enable(self) -> None:
        with _lock:
            self.active = True
            try:
                for key in map(key_of, self.devices):
                    for name in sorted(self.names):
                        self._add(name, key)
            except BaseException:
                self._remove()
                raise
            if self.thread:
                set_scopes((*current_scopes(), self))

    def _add(self, name: str, key: str) -> None:
        overload = overload_of(name)
        assert overload is not None
        if not is_reachable(overload, key):
            return
        known = _routes.get((name, key))
        if known is None:
            route = Route(overload, key)
            library = _register(route, key)
            known = _routes[name, key] = (route, library, [])
        route, _, users = known
        users.append(self)
        if not self.thread:
            route.strict += self.strict
            route.everywhere += 1

    def _remove(self) -> None:
        self.active = False
        for (name, key), (route, library, users) in list(_routes.items()):
            if self not in users:
                continue
            users.remove(self)
            if not self.thread:
                route.everywhere -= 1
                route.strict -= self.strict
            if not users:
                _removed_kernels.append(torch.library.get_kernel(route.overload, key))
                library._destroy()
                del _routes[name, key]

    def disable(self) -> None:
        """Let PyTorch's kernels run again, unless another scope enables the same; for a second time
        it does nothing. ArgumentError in another thread than that which enabled for itself alone.
        """
        with _lock:
            if not self.active:
                return
            if self.thread:
                if threading.get_ident() != self._owner:
                    raise ArgumentError("another thread enabled it for itself alone")
                left = tuple(scope for scope in current_scopes() if scope is not self)
                set_scopes(left)
            self._remove()

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disable()

    def __repr__(self) -> str:
        where = "in this thread" if self.thread else "in all threads"
        state = f"enabled {where} on {', '.join(self.devices)}" if self.active else "disabled"
        return f"<{len(self.names)} overloads, {state}>"


def _register(route: Route, key: str) -> Any:
    """Register a route; return what holds the registration. PyTorch has no types for that."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        # PyTorch says once that a kernel is overridden: that is what is asked for.
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        library.impl(route.overload, override(route), key, allow_override=True)
    return library


def enable(
    include: Iterable[Any] | None = None,
    exclude: Iterable[Any] = (),
    *,
    device: str | Sequence[str] | None = None,
    thread: bool = False,
    strict: bool = False,
) -> Enabled:
    """Let PyTorch's functions run on the kernels that `meta` chooses, gradients included.

    It holds at once, until `Enabled.disable` of what it returns, or, in ``with enable():``, until
    the block ends. Scopes nest and add up.

    Parameters
    ----------
    include: what is enabled: names of ATen's ("add.Tensor", "aten::_softmax", "softmax" for all
        that belongs to it, with its gradient) or operators of `meta`; None for all that can be.
    exclude: what of that is not.
    device: "cuda", "cpu", the device of a vendor in force ("npu"), or several; None for "cuda"
        where there is such a device, else that of a vendor, else "cpu".
    thread: whether only calls of this thread, and of the backward passes that it starts, are
        served; the default is all threads.
    strict: whether a call that is not served is an AtenError; else PyTorch's own kernel runs it,
        and `report` says so.

    Raises UnknownName for names that are not known, with the nearest ones, ArgumentError for what
    cannot be enabled, with the reason, and for lists that contradict each other, and DeviceError
    for a device that is not there.

    >>> import torch
    >>> import meta.interop.torch
    >>> with meta.interop.torch.enable():
    ...     torch.softmax(torch.zeros(1, 4), -1)
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    included = None if include is None else _as_list(include)
    enabled = Enabled(
        select_overloads(included, _as_list(exclude)), select_devices(device), thread, strict
    )
    enabled._enable()
    return enabled


def _as_list(names: Iterable[Any]) -> Any:
    """Return names as a list, a single one as it is."""
    return names if isinstance(names, str) or not isinstance(names, Iterable) else list(names)


def disable() -> None:
    """End all scopes that hold in all threads, and those of this thread.

    >>> import meta.interop.torch
    >>> enabled = meta.interop.torch.enable(["softmax"], device="cpu")
    >>> meta.interop.torch.disable()
    >>> enabled.active
    False
    """
    with _lock:
        users = {id(u): u for _, _, users in _routes.values() for u in users}
        for scope in users.values():
            if not scope.thread or scope in current_scopes():
                scope.disable()


# Under which of PyTorch's dispatch keys the kernels of a kind of device are.


def key_of(kind: str) -> str:
    """Return the dispatch key of a kind of device: what the vendor in force there states, else the
    kind in capitals.

    Raises DeviceError for a key that is none of a device in PyTorch.
    """
    found = active(kind)
    if found is None or found.vendor is None:
        return kind.upper()
    key = found.vendor.dispatch_key
    known = [name for name in torch._C.DispatchKey.__members__ if _is_of_a_device(name)]
    if key not in known:
        raise DeviceError(
            f"the vendor {found.name!r} states a dispatch key that is none of a device",
            expected="such as 'CPU', 'CUDA' or 'PrivateUse1'",
            found=repr(key),
            hint=nearest(key, known),
        )
    return key


def _is_of_a_device(key: str) -> bool:
    """Whether dense tensors of one kind of device have a dispatch key."""
    if key.startswith(("Autograd", "Autocast", "Start", "End", "Composite")):
        return False
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return bool(keys.has(torch._C.DispatchKey.Dense)) and key not in ("Dense", "Meta")


def available_devices() -> tuple[str, ...]:
    """Return the kinds of devices that operators can be enabled for: those of vendors in force,
    and those that all of `meta` knows.
    """
    own = [v.known.vendor.device for v in verdicts() if v.active and v.known.vendor is not None]
    return (*(kind for kind in dict.fromkeys(own) if kind not in BUILT_IN), *reversed(BUILT_IN))


def select_devices(device: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds of devices that are meant; DeviceError for one that is not there."""
    here = available_devices()
    if device is None:
        return ("cuda",) if torch.cuda.is_available() else (next(k for k in here if k != "cuda"),)
    found = (device,) if isinstance(device, str) else tuple(device)
    for one in found:
        if one not in here:
            raise DeviceError(
                "operators are enabled for a kind of device",
                expected=" or ".join(map(repr, sorted(here))),
                found=repr(one),
                hint=nearest(str(one), here),
            )
        if one == "cuda" and not torch.cuda.is_available():
            raise DeviceError("there is no CUDA device", found=repr(one))
    return found
