"""`DialectOp`: what a dialect has to run a base operator, generic and for the chips of vendors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from typing import TYPE_CHECKING, Any

from meta.base.call_context import Default, current
from meta.base.device import BUILT_IN, Device
from meta.base.errors import DispatchError, RegistrationError
from meta.base.source import Span
from meta.dialect.core.backend_errors import building
from meta.dialect.core.openv import OpEnv, Unsupported, config_text
from meta.dialect.core.plevel import FUSED_ONLY, HANDWRITTEN, level_text
from meta.dialect.core.preference import Config, Preference, exactly, only
from meta.dialect.core.scope import GENERIC, Scope, in_force
from meta.dialect.core.state import Init
from meta.ir.expr import OpNode
from meta.op.core.call import CallValues, written_positions
from meta.op.core.op import Op
from meta.op.core.registration import reason_of

if TYPE_CHECKING:
    from meta.dialect.core.backend import Backend

Maker = Callable[[CallValues], OpEnv]


class DialectOp(OpNode):
    """One backend's implementation of a base operator.

    Calling it runs the operator on that backend only; a program that is being traced names it.
    ``plevels`` holds its level on each kind of device of its dialect. ``config``: how its kernel is
    launched; None leaves that open (see `configured`). ``scope``: for which chips it is; those for
    the chips of vendors are its ``parts``.
    """

    def __init__(
        self, base: Op, dialect: Backend, plevels: dict[str, int], make: Maker, site: Span
    ) -> None:
        super().__init__(f"{dialect.name}.{base.name}")
        self.base, self.dialect, self.plevels = base, dialect, plevels
        self.make, self.site = make, site
        # How its kernel may be fused with its neighbours; None: not at all.
        self.fusion: str | None = None
        # The kinds of devices on which one kernel serves all extents of symbolic dimensions.
        self.symbolic: tuple[str, ...] = ()
        # Its level for a call in which it is better or worse than otherwise; None: the usual one.
        self.level_of: Callable[[CallValues], int | None] | None = None
        # How its state is made, or that of the forward operator whose state it uses.
        self.init: Init | None = None
        self.uses: Init | None = None
        # What its configurations depend on in a call, as text; None: on all of the call.
        self.depends: Callable[[CallValues], str] | None = None
        # What a call handler asks of an operator is the base operator's.
        self.schema, self.infer, self.call_values = base.schema, base.infer, base.call_values
        self.random, self.promotes = base.random, base.promotes
        self.counts_as_float = base.counts_as_float
        self.view_elsewhere = base.view_elsewhere
        self.config: Config | None = None
        self._configured: dict[Config, DialectOp] = {}
        self.scope, self.standalone = GENERIC, False
        # Whether there is an implementation for all chips.
        self.generic = True
        self._scoped: dict[Scope, DialectOp] = {}
        self._alone: DialectOp | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        handler = current()
        if handler is not None and handler is not Default.handler:
            return handler(self, args, kwargs)
        name = self.dialect.name
        with only(name) if self.config is None else exactly(name, self.config):
            return Default.handler(self.base, args, kwargs)

    def refusal(self, call: CallValues, preference: Preference) -> str | None:
        """Return why it is not asked for a kernel of a call; None if it is."""
        dialect, device = self.dialect, call.device
        reason = preference.refusal(dialect.name)
        if self.standalone and device.kind not in BUILT_IN:
            # It is in force on a device that no dialect states, and launches its kernels itself.
            reason = reason or dialect.unavailable
        elif reason is None:
            reason = (dialect.absence if self.standalone else dialect.refusal)(device)
        if reason is None and self.plevel(device) <= FUSED_ONLY:
            reason = "serves as part of a fused pattern only"
        if reason is None and dialect.declines is not None:
            with building(call.op.name, call, dialect.name, "cannot prepare a kernel"):
                reason = reason_of(dialect.declines, dialect.declines(call), "declines=")
        if reason is None and self.scope.declines is not None:
            reason = self.scope.declines(call)
        return reason

    def pinned(
        self, call: CallValues, preference: Preference, runs: Callable[[CallValues], OpEnv]
    ) -> str | None:
        """Return why this implementation of a gradient is not the one for a call: another dialect
        runs the forward call, and so has the state. None if it may run, as one that is named alone.
        """
        if preference.only == (self.dialect.name,):
            return None
        users = {o.dialect: o.uses for o in call.op.aspects.dialect_ops if o.uses is not None}
        if not users:
            return None
        init = self.uses or next(iter(users.values()))
        forward = init.forward_call(call)
        if forward is None:
            return None if self.uses is None else f"it is not told all arguments of {init.base}"
        try:
            ran = runs(forward).dialect_op
        except DispatchError:
            return None if self.uses is None else f"no dialect runs {init.base.name}"
        assert ran is not None
        if self.uses is not None:
            return None if ran.dialect is self.dialect else f"{ran.name} runs the forward call"
        return f"it uses the state of {ran.name}" if ran.dialect in users else None

    def kernel(self, call: CallValues, config: Config) -> OpEnv | str:
        """Return the kernel of a call in a configuration, or the reason why it has none.

        RegistrationError for a maker that returns something else, BackendError for one that fails.
        """
        with building(call.op.name, call, self.dialect.name, "cannot prepare a kernel"):
            try:
                env = self._made(call).configured(config)
            except Unsupported as refusal:
                return str(refusal)
        if call.op.schema.written:
            env.counts_writes(written_positions(call))
        env.scope, env.site = self.scope, self.site
        env.dialect_op = self.plain.configured(config)
        return env

    def _made(self, call: CallValues) -> OpEnv:
        env: Any = self.make(call)
        if not isinstance(env, OpEnv):
            raise RegistrationError(
                f"the maker of {self.name} returns no kernel",
                expected="OpEnv(function, allocates=...), or that it raises Unsupported",
                found=f"{env!r:.200}",
                span=self.site,
            )
        return env

    @property
    def compiles_anew(self) -> bool:
        """Whether a call in new shapes compiles a kernel. What a vendor's function compiles, it
        keeps for other shapes.
        """
        return not self.standalone and self.dialect.compiles_anew(self.base)

    @property
    def plain(self) -> DialectOp:
        """The implementation, with the configuration of its kernel left open."""
        found: DialectOp = self.dialect.ops[self.base.name]
        return found

    def configured(self, config: Config) -> DialectOp:
        """Return the same implementation whose kernel is launched in a configuration, which its
        name says; the default one is named as the operator itself is.
        """
        if not config:
            return self
        found = self._configured.get(config)
        if found is None:
            made = copy(self)
            made.name, made.config = f"{self.name}@{config_text(config)}", config
            found = self._configured.setdefault(config, made)
        return found

    @property
    def fuses(self) -> bool:
        """Whether it is one of those operators of which the backend compiles several to one kernel;
        not of those, such as a product, that remain most of the work of theirs.
        """
        own = self.fusion not in (None, "opaque", "out_elemwise_fusable")
        return own and self.dialect.fuse is not None

    def plevel(self, device: Device, call: CallValues | None = None) -> int:
        """Return the level on a device, for a call if one is given; the dialect's if it does not
        run there at all. One for the chips of a vendor is not below those that are less specific.
        """
        own = self.plevels.get(device.kind, self.dialect.plevel)
        if call is not None and self.level_of is not None:
            own = self.level_of(call) or own
        if self.scope == GENERIC:
            return own
        if device.kind not in self.plevels:  # a device of the vendor alone
            return max(self.plevels.values())
        return max(own, *(one.plevel(device) for one in self.plain._behind(self.scope)))

    def _behind(self, scope: Scope) -> list[DialectOp]:
        """Return itself, and what it has for the chips of the same vendor that is less specific."""
        others = (s for s in self._scoped if s.vendor == scope.vendor and s.rank < scope.rank)
        return [self, *(self._scoped[s] for s in others)]

    def parts(self, device: Device) -> list[DialectOp]:
        """Return the implementations that are in force on a device, the most specific first."""
        if not self._scoped:
            return [self]
        found = [self._scoped[s] for s in in_force(device) if s in self._scoped]
        if not self.generic:
            return found
        return [*found, self._for_all()] if found else [self]

    def _for_all(self) -> DialectOp:
        """Return the generic implementation alone."""
        if self._alone is None or self._alone.make is not self.make:
            self._alone = copy(self)
            self._alone._scoped = {}
        return self._alone

    @property
    def sites(self) -> list[Span]:
        """Where all its implementations are defined."""
        return [self.site, *(one.site for one in self._scoped.values())]

    def sites_of(self, scope: Scope) -> list[Span]:
        """Return where its implementation for a scope is defined, if there is one."""
        return [one.site for known, one in self._scoped.items() if known == scope]

    def stands_alone(self, scope: Scope) -> None:
        """Say of the implementation for a scope that it launches its kernels itself: what the class
        of the dialect refuses and compiles does not concern it.
        """
        self._scoped[scope].standalone = True

    def add_scoped(self, scope: Scope, make: Maker, site: Span, stated: dict[str, int]) -> None:
        """Add an implementation for the chips of a vendor. ``stated``: its levels; where there is
        none it is `HANDWRITTEN`.

        Raises RegistrationError for a second one of a scope, and where the generic one has state or
        fuses with its neighbours, which would go past it.
        """
        what = f"the {scope} implements {self.name!r}"
        if scope in self._scoped:
            raise RegistrationError(
                f"{what} twice", found=f"{site} and {self._scoped[scope].site}", span=site
            )
        if self.init is not None or self.uses is not None or self.fusion is not None:
            why = "fuses with its neighbours" if self.fusion is not None else "has state"
            raise RegistrationError(
                f"{what}, of which the generic kernel at {self.site} {why}",
                expected="an operator whose kernels stand alone",
                hint="implement it on another dialect",
                span=site,
            )
        kinds = self.dialect.devices
        levels = {kind: stated.get(kind, HANDWRITTEN) for kind in kinds}
        made = DialectOp(self.base, self.dialect, levels, make, site)
        made.scope = scope
        self._scoped[scope] = made

    def drop_scoped(self, vendor: str) -> None:
        """Forget what it has for the chips of a vendor."""
        for scope in [scope for scope in self._scoped if scope.vendor == vendor]:
            del self._scoped[scope]

    def __repr__(self) -> str:
        return f"<dialect operator {self.name}, {level_text(self.plevels)}>"


def not_generic(call: CallValues) -> OpEnv:
    """The maker of an operator of which a dialect has no generic kernel."""
    raise Unsupported("its kernels are for the chips of vendors, of which none is in force here")


def exact_kernel(callee: DialectOp) -> AbstractContextManager[None]:
    """Use an operator's dialect only, and its kernel in the configuration that is stated."""
    found: AbstractContextManager[None] = exactly(callee.dialect.name, callee.config or ())
    return found
