"""Products beside collectives: they leave the multiprocessors alone on which NCCL runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meta.base.device import Device
from meta.base.errors import DispatchError
from meta.dialect.core import DIALECTS, FUSED, DialectOp
from meta.dialect.core.fused import CONFIG
from meta.dialect.core.openv import Config, config_text
from meta.ir import Binding, Call, Expr, GlobalVar, Module, Var
from meta.ir.visit import with_fresh_vars
from meta.passes.calls import PRODUCTS, called_op, named_args
from meta.passes.dispatch import kernel_of, prepared
from meta.passes.links import links_of
from meta.passes.outline import Outlined
from meta.passes.predict import Predictor
from meta.passes.rewrite import with_main, with_value
from meta.passes.timeline import Clock, Timeline
from meta.runtime import chip

BY = "cublas"
"""The dialect whose products can be told how many multiprocessors there are."""
PROCESSORS = "processors"


def leave_room(module: Module, *, device: Device, taken: int = 24) -> Module:
    """Let the products of main that run beside a collective be made for fewer multiprocessors.

    NCCL's kernels hold some of them as long as an exchange takes, and a product is divided into as
    many thread blocks as a GPU has multiprocessors, which all take the same time. Where a few of
    them find no place the product takes twice as long: those come when the first ones have ended.
    Made for ``taken`` multiprocessors less, it takes a little longer only.

    Which products run beside an exchange follows from the times that are measured or estimated for
    kernels and links. 24 is what NCCL takes on two H200. To be run after `schedule_collectives`; on
    CUDA only.
    """
    among = set(_beside(module, device)) if device.kind == "cuda" else set()
    if not among:
        return module
    room = _Room(module, device, chip.compiled_for(device).processors - taken)
    made = [room.beside(b) if b.var in among else b for b in module.main.body.bindings]
    changed = with_main(module, made)
    return changed.with_functions({**changed.functions, **room.made.functions})


def _beside(module: Module, device: Device) -> Iterator[Var]:
    """Yield what is computed while an exchange goes on."""
    sizes: dict[str, int] = {}
    for binding in module.main.body.bindings:
        call, called = binding.value, called_op(binding.value)
        if called is not None and called.collective and isinstance(call, Call):
            args = named_args(called, call)
            sizes[args["over"]] = args["size"]
    timeline = Timeline(module, sizes, links_of(device), Predictor(module, device))
    clock = Clock()
    for binding in module.main.body.bindings:
        if clock.now < clock.free:
            yield binding.var
        clock = timeline.binding(binding, clock)


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
