"""Dialects: backends, and the implementations of base operators that they offer.

A backend is one `Dialect` object; see `meta/dialect/tvm` and `meta/dialect/torch` for two, and
docs/howto/backend.md. A package of one's own announces its object through the entry-point group
``meta.dialects``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from meta.base import aliases
from meta.base.device import Device
from meta.base.errors import DispatchError, RegistrationError, UnknownName
from meta.base.registry import nearest
from meta.base.source import Span, definition_span
from meta.dialect.core.backend import Backend
from meta.dialect.core.catalog import DIALECTS, declares_absent
from meta.dialect.core.dialect_op import DialectOp, Maker, not_generic
from meta.dialect.core.fused import ARGUMENTS, CONFIG, KERNEL, FusedMaker, FusedPattern
from meta.dialect.core.kernel_signature import bind_kernel, check_parameters
from meta.dialect.core.openv import (
    Artifact,
    CompiledKernel,
    Kernel,
    OpEnv,
    Unsupported,
    config_of,
    declining,
)
from meta.dialect.core.plevel import Levels, by_device, from_table
from meta.dialect.core.preference import forget
from meta.dialect.core.registration_checks import check_kernel, check_levels
from meta.dialect.core.scope import GENERIC, registering
from meta.dialect.core.state import Init, with_state
from meta.ir.expr import Function
from meta.ir.operators import OP_RESOLVERS
from meta.op.core.call import CallValues
from meta.op.core.op import Op
from meta.op.core.registration import parameters, require_function, require_op

IN_PLACE = "in_place"
"""The attribute of a fused function whose (last) result may take the memory of a parameter: its
number."""


def overwrites_capture(name: str, function: Function, device: Device) -> bool:
    """Whether what the kernel of a pattern is to write over is its capture of a name."""
    return bool(dict(function.attrs.get(ARGUMENTS, ())).get(name) == function.attrs[IN_PLACE])


class Dialect(Backend):
    """A backend and its implementations of operators; `Backend` has the parameters.

    ops, patterns: these implementations, and its kernels for several calls, by name.

    docs/howto/backend.md makes one.

    >>> from meta.dialect.core.catalog import DIALECTS
    >>> aten = DIALECTS["torch"]
    >>> aten.devices, aten.plevel.name, aten.resolve("softmax").name
    (('cpu', 'cuda'), 'REFERENCE', 'torch.softmax')
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ops: dict[str, DialectOp] = {}
        self.patterns: dict[str, FusedPattern] = {}
        DIALECTS.register(self.name, self, self.site)
        OP_RESOLVERS[self.name] = self.resolve

    def resolve(self, name: str) -> DialectOp:
        """Return the implementation of an operator; UnknownName with the nearest names."""
        name, at, config = name.partition("@")
        if name not in self.ops or not self.ops[name].generic:
            self.load()
        if at and name in self.ops:
            try:
                return self.ops[name].configured(config_of(config))
            except ValueError:
                raise UnknownName(
                    f"dialect {self.name!r} has no operator {name + at + config!r}",
                    hint=f"{name}@name=value, in the order of names",
                ) from None
        if name not in self.ops:
            why = f" ({self.unavailable})" if self.unavailable else ""
            raise UnknownName(
                f"dialect {self.name!r} has no operator {name!r}{why}",
                hint=nearest(name, self.ops, aliases.MODULE),
            )
        return self.ops[name]

    def restore(self, artifact: Artifact) -> CompiledKernel:
        """Return the kernel of an artifact; ValueError unless it is a sound one of this dialect."""
        if not self.restorer:
            raise ValueError(f"dialect {self.name!r} keeps no kernels")
        made: CompiledKernel = importlib.import_module(self.restorer).restore(artifact)
        return made

    def op(
        self,
        base: Op,
        *,
        plevel: Levels | None = None,
        init: Callable[..., Any] | None = None,
        state_of: Op | None = None,
    ) -> Callable[[Maker], DialectOp]:
        """Register a maker: of a call without data it returns an `OpEnv` or raises Unsupported.

        With ``init`` or ``state_of`` the OpEnv's function takes the state before all other values.
        ``plevel`` and these two as in `kernel`. A decorator.
        """

        require_op(base, f"a kernel of the dialect {self.name!r}")

        def register(make: Maker) -> DialectOp:
            site = definition_span(make)
            require_function(make, f"a maker of {base.name!r}", site)
            return self.register(base, make, site, plevel, init=init, state_of=state_of)

        return register

    def kernel(
        self,
        base: Op,
        *,
        plevel: Levels | None = None,
        when: Callable[[CallValues], str | None] | None = None,
        strided: bool = True,
        not_capturable: str = "",
        init: Callable[..., Any] | None = None,
        state_of: Op | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a plain function on torch tensors as the implementation of an operator.

        It names the arguments it wants; attributes are bound beforehand. It returns the operator's
        results, or, with a parameter ``out``, fills the tensor (or tuple of tensors) given there. A
        parameter ``call`` receives the `CallValues`, a parameter ``state`` what ``init`` made. (For
        an operator that has an argument of that name they are ``out_``, ``call_`` and ``state_``.)

        Parameters
        ----------
        plevel: another level than the dialect's; a mapping such as ``{"cpu": LIBRARY}`` states it
            for some kinds of device and leaves the dialect's to the others.
        when: returns a reason to decline the call, or None to accept it.
        strided: whether tensor arguments may be non-contiguous.
        not_capturable: why a CUDA graph cannot hold the kernel: it reads values on the host, say.
        init: makes the state that kernels read, once per device and values of what it names:
            arguments, tensors as types, and ``device``; see `state.py`.
        state_of: the operator whose init on this dialect makes the state that this one, its
            gradient, uses. A call of it runs on the dialect that runs the forward call.
        """
        stateful = init is not None or state_of is not None
        require_op(base, f"a kernel of the dialect {self.name!r}")
        for given_, what in ((when, "when="), (init, "init=")):
            if given_ is not None:
                require_function(given_, f"{what} of a kernel of {base.name!r}")

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            check_kernel(base, function)
            check_parameters(
                base, function, ("out", "call", "state") if stateful else ("out", "call")
            )

            def make(call: CallValues) -> OpEnv:
                declining(when, call)
                wants_out = base.schema.reserved("out") in parameters(function)
                run = bind_kernel(function, call, stateful)
                return OpEnv(run, not wants_out, strided, not_capturable=not_capturable)

            site = definition_span(function)
            self.register(base, make, site, plevel, init=init, state_of=state_of)
            return function

        return register

    def register(
        self,
        base: Op,
        make: Maker,
        site: Span,
        plevel: Levels | None = None,
        *,
        init: Callable[..., Any] | None = None,
        state_of: Op | None = None,
    ) -> DialectOp:
        """Attach a maker to an operator; RegistrationError if this dialect has one already, if
        ``plevel`` names a kind of device on which the dialect does not run, or if the state does
        not fit; see `kernel`. In the folder of a vendor it is for the vendor's chips
        (`scope.registering`).
        """
        require_op(base, f"a kernel of the dialect {self.name!r}", site)
        scope, known = registering(), self.ops.get(base.name)
        if scope != GENERIC:
            return self._register_scoped(base, make, site, plevel, init or state_of)
        if known is not None and known.generic:
            raise RegistrationError(
                f"dialect {self.name!r} implements {base.name!r} twice",
                found=f"{site} and {known.site}",
                span=site,
            )
        levels = self._levels(plevel, base.name, site)
        made = known or DialectOp(base, self, levels, make, site)
        made.plevels, made.make, made.site, made.generic = levels, make, site, True
        if init is not None:
            made.init = Init(made.name, base, init)
        if state_of is not None:
            made.uses = self._init_of(state_of, base, init, site)
        state = made.init or made.uses
        if state is not None:
            made.make = with_state(make, state)
        if known is None:
            self.ops[base.name] = made
            base.aspects.dialect_ops.append(made)
        forget()
        return made

    def _register_scoped(
        self, base: Op, make: Maker, site: Span, plevel: Levels | None, state: Any
    ) -> DialectOp:
        """Attach a maker to an operator, for the chips of the vendor whose folder is read."""
        if state is not None:
            raise RegistrationError(
                f"a kernel of {base.name!r} for the {registering()} has state", span=site,
                expected="a kernel without init and state_of",
            )  # fmt: skip
        found = self.ops.get(base.name)
        if found is None:
            levels = by_device(None, self.plevel, self.devices)
            found = DialectOp(base, self, levels, not_generic, site)
            found.generic = False
        stated = {} if plevel is None else self._levels(plevel, base.name, site)
        found.add_scoped(registering(), make, site, stated)
        if base.name not in self.ops:
            self.ops[base.name] = found
            base.aspects.dialect_ops.append(found)
        forget()
        return found

    def _init_of(self, forward: Op, gradient: Op, own: Any, site: Span) -> Init:
        """Return the init of an operator on this dialect, which serves that of its gradient."""
        require_op(forward, f"state_of= of {self.name}.{gradient.name}", site)
        known = self.ops.get(forward.name)
        if known is None or known.init is None or own is not None:
            raise RegistrationError(
                f"{self.name}.{gradient.name} cannot use the state of {forward.name!r}",
                expected=f"{self.name}.{forward.name}, registered before with init=",
                found="an init of its own besides" if own is not None else "no such operator",
                span=site,
            )
        known.init.serves_gradient(gradient)
        return known.init

    def pattern(
        self,
        describes: Callable[..., Any],
        *,
        plevel: Levels | None = None,
        when: Callable[..., str | None] | None = None,
    ) -> Callable[[Kernel], Kernel]:
        """Register a plain function on torch tensors as the kernel of several calls at once.

        The function names what it wants of what the pattern captures; tensors are given as such,
        attributes bound beforehand. It returns the result (several as a tuple), or fills ``out``.

        Parameters
        ----------
        describes: the pattern in operator call syntax, ``lambda x, w, b: op.relu(...)``, a tuple
            for several results; see `meta.passes.pattern.pattern`. What it captures is what its
            parameters stand for. Of calls that write arguments the kernel writes what is captured.
        plevel: as in `kernel`. The pattern is used where nobody runs one of its calls at a larger
            level, and before patterns of smaller levels.
        when: takes captures by name, tensors as their types; returns a reason to decline, or None.

        Raises RegistrationError for a name that is taken, and for a parameter of the function that
        the pattern does not capture.
        """

        def register(function: Kernel) -> Kernel:
            how = {"kernel": function, "when": when}
            self._add_pattern(function.__name__, describes, plevel, function, **how)
            return function

        return register

    def pattern_op(
        self, describes: Callable[..., Any], *, plevel: Levels | None = None, name: str = ""
    ) -> Callable[[FusedMaker], FusedMaker]:
        """Register what prepares a kernel of several calls: a maker, as `op` is for single ones.

        It names the captures that it wants, which are given as types and literals, also ``result``,
        the type of the result (a tuple of several), and ``device``. It returns an `OpEnv`, whose
        function takes the captured tensors in the pattern's order, then the results if it fills
        them; or it raises `Unsupported`. A maker of several patterns has defaults for what one of
        them does not capture, and ``name`` is that of the pattern. Other parameters and errors: as
        in `pattern`.
        """

        def register(maker: FusedMaker) -> FusedMaker:
            self._add_pattern(name or maker.__name__, describes, plevel, maker, maker=maker)
            return maker

        return register

    def _add_pattern(
        self,
        name: str,
        describes: Callable[..., Any],
        plevel: Levels | None,
        function: Callable[..., Any],
        **how: Any,
    ) -> None:
        site = definition_span(function)
        if registering() != GENERIC:
            raise RegistrationError(
                f"the {registering()} has a pattern, {name!r}",
                expected="kernels of single operators",
                hint="patterns are of a dialect of one's own (docs/howto/backend.md)",
                span=site,
            )
        if name in self.patterns:
            raise RegistrationError(
                f"dialect {self.name!r} has two patterns {name!r}",
                found=f"{site} and {self.patterns[name].site}",
                span=site,
            )
        levels = self._levels(plevel, name, site)
        self.patterns[name] = FusedPattern(name, self, describes, levels, site, **how)

    def fused_kernel(self, function: Function, device: Device) -> OpEnv:
        """Return the kernel of a fused function: its pattern's, or else what the backend compiles.

        UnknownName if the function names a pattern that this dialect does not have, DispatchError
        if the backend cannot compile functions, on this machine or at all.
        """
        if function.attrs.get(KERNEL) not in self.patterns:
            self.load()
        if KERNEL not in function.attrs:
            if self.fuse is None:
                raise DispatchError(
                    f"dialect {self.name!r} cannot compile a fused function",
                    found=self.unavailable,
                    hint="compile the model once more on this machine",
                )
            return self._launched(function, self.fuse(function, device))
        name = function.attrs[KERNEL]
        if name not in self.patterns:
            raise UnknownName(
                f"dialect {self.name!r} has no pattern {name!r}", hint=nearest(name, self.patterns)
            )
        made = self._launched(function, self.patterns[name].env(function, device))
        made.site = self.patterns[name].site
        return made

    def _launched(self, function: Function, env: OpEnv) -> OpEnv:
        """Return a kernel in the configuration that its function states."""
        stated = function.attrs.get(CONFIG, "")
        try:
            return env.configured(config_of(stated))
        except (Unsupported, ValueError, TypeError) as error:
            raise DispatchError(
                f"dialect {self.name!r} cannot launch a fused function in the configuration "
                f"{stated!r}: {error}",
                hint="compile the model once more on this machine",
            ) from None

    def _levels(self, plevel: Levels | None, name: str, site: Span) -> dict[str, int]:
        if plevel is None:
            plevel = from_table().get(self.name, {}).get(name)
        else:
            check_levels(plevel, f"{self.name}.{name}", self.devices, site)
        return by_device(plevel, self.plevel, self.devices)


@declares_absent
def _absent(name: str, reason: str) -> Dialect:
    return Dialect(name, devices=("cpu", "cuda"), probe=lambda: reason)
