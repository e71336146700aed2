"""Products beside collectives: they leave the multiprocessors alone on which NCCL runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meta.base.device import Device
from meta.base.errors import DispatchError
from meta.dialect.core import DIALECTS, FUSED, DialectOp
from meta.dialect.core.fused import CONFIG
from meta.dialect.core.openv import Config, config_text
from meta.ir import Binding, Call, Expr, GlobalVar, Module, type_of
from meta.ir.visit import with_fresh_vars
from meta.passes.calls import PRODUCTS, called_op, flat_atoms, named_args
from meta.passes.dispatch import kernel_of, prepared
from meta.passes.lifetimes import type_bytes
from meta.passes.links import PATTERNS, STARTED, WAIT, links_of
from meta.passes.outline import Outlined
from meta.passes.predict import Predictor
from meta.passes.rewrite import with_value
from meta.runtime import chip

BY = "cublas"
"""The dialect whose products can be told how many multiprocessors there are."""
PROCESSORS = "processors"
SKEW = 40.0
"""Microseconds for which an exchange waits for the other ranks, besides what it takes: as measured
on two H200.
"""


def leave_room(module: Module, *, device: Device, taken: int = 24, longer: float = 1.5) -> Module:
    """Let the products of main that run beside a collective be made for fewer multiprocessors.

    NCCL's kernels hold some of them as long as an exchange takes, and a product is divided into as
    many thread blocks as a GPU has multiprocessors, which all take the same time. Where a few of
    them find no place the product takes twice as long: those come when the first ones have ended.
    Made for ``taken`` multiprocessors less, it takes a little longer only.

    Which products run beside an exchange follows from the times that are measured or estimated for
    kernels and links, those of links ``longer``, since both use the memory. 24 is what NCCL takes
    on two H200. To be run after `schedule_collectives`; on CUDA only.
    """
    if device.kind != "cuda" or not any(_starts(b) for b in module.main.body.bindings):
        return module
    timeline = _Timeline(module, device, longer)
    room = _Room(module, device, chip.compiled_for(device).processors - taken)
    made = [
        room.beside(binding) if timeline.passes(binding) else binding
        for binding in module.main.body.bindings
    ]
    functions = {**module.functions, **room.made.functions}
    body = replace(module.main.body, bindings=tuple(made))
    return module.with_functions({**functions, "main": replace(module.main, body=body)})


def _starts(binding: Binding) -> bool:
    called = called_op(binding.value)
    return called is not None and called.collective and called.name.endswith(STARTED)


class _Timeline:
    """The clock of a rank. now: when the last kernel ends; free: when the last exchange does."""

    def __init__(self, module: Module, device: Device, longer: float) -> None:
        self.predictor, self.links, self.longer = (
            Predictor(module, device),
            links_of(device),
            longer,
        )
        self.now = self.free = 0.0
        self.ends: dict[Expr, float] = {}

    def passes(self, binding: Binding) -> bool:
        """Let a binding run; return whether an exchange goes on when it begins."""
        call, called = binding.value, called_op(binding.value)
        beside = self.now < self.free
        if called is None or not called.collective or not isinstance(call, Call):
            self.now += self.predictor.binding(binding).total
            return beside
        args = named_args(called, call)
        if called.name == WAIT:
            atoms = (*flat_atoms(args["x"]), *flat_atoms(args["given"]))
            self.now = max([self.now, *(self.ends[a] for a in atoms if a in self.ends)])
            return False
        pattern = PATTERNS[called.name.removesuffix(STARTED)]
        if pattern == "nothing" or args["size"] == 1:
            return False
        took = self.longer * self._time(pattern, binding, args) + SKEW
        self.free = max(self.now, self.free) + took
        if called.name.endswith(STARTED):
            self.ends |= dict.fromkeys((binding.var, *flat_atoms(args["x"])), self.free)
        else:
            self.now = self.free
        return False

    def _time(self, pattern: str, binding: Binding, args: dict[str, Any]) -> float:
        """Return the microseconds of an exchange."""
        over, size = args["over"], args["size"]
        given = sum(type_bytes(type_of(atom)) for atom in flat_atoms(args["x"]))
        count = max(given, type_bytes(type_of(binding.var)))
        time, _ = self.links.time(pattern, count, self.links.reach({over: size}, over))
        return time


class _Room:
    """Products for fewer multiprocessors, and the functions that are made for them."""

    def __init__(self, module: Module, device: Device, processors: int) -> None:
        self.module, self.device, self.made = module, device, Outlined(module)
        self.config: Config = ((PROCESSORS, processors),)

    def beside(self, binding: Binding) -> Binding:
        """Return a binding whose product leaves room; another one as it is."""
        call = binding.value
        if not isinstance(call, Call):
            return binding
        callee = self._callee(call)
        return binding if callee is None else with_value(binding, Call(callee, call.args))

    def _callee(self, call: Call) -> Expr | None:
        callee = call.callee
        try:
            if isinstance(callee, DialectOp):
                if callee.dialect.name != BY or callee.config or callee.base not in PRODUCTS:
                    return None
                configured = callee.configured(self.config)
                kernel_of(configured, prepared(callee.base, call, self.device))
                return configured
            if not isinstance(callee, GlobalVar):
                return None
            function = self.module.functions[callee.name]
            if function.attrs.get(FUSED) != BY or CONFIG in function.attrs:
                return None
            attrs = {**function.attrs, CONFIG: config_text(self.config)}
            function = replace(with_fresh_vars(function), attrs=attrs)
            DIALECTS[BY].fused_kernel(function, self.device)
        except DispatchError:  # there is no algorithm for so many, or the kernel is no product
            return None
        return GlobalVar(self.made.name(function, f"{callee.name}_beside"), function.type)
