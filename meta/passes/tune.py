"""Measuring what a program calls, and choosing by it how its kernels are launched.

Which dialect runs a call is chosen by `dispatch`, which finds what `tune` measured. Kernels that a
backend may fuse with others take part there in their default configuration: they are others then.
In which one each kernel is launched in the end is up to `configure`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meta.base.device import Device
from meta.base.progress import bar
from meta.cost.chooser import configurations, measure_missing, race_of, tuning
from meta.cost.flops import work_of
from meta.cost.record import Breadth, choose
from meta.dialect.core import FUSED, DialectOp
from meta.dialect.core.fused import CONFIG
from meta.dialect.core.openv import config_text
from meta.dialect.core.preference import Config, current
from meta.ir import Binding, Call, Function, Module, Type, bindings
from meta.op.core import CallValues, Op, View
from meta.passes.dispatch import declared_call
from meta.passes.rewrite import map_functions, rewrite_function, with_value


def tune(module: Module, *, device: Device) -> Module:
    """Measure the candidates of each operator call that was never measured (META_TUNE=on, or within
    `meta.cost.measured`), those that seem to take longest first; the program stays as it is.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> program = parse("func @main(%x: float32[2]) -> float32[2] {\\n  return %x\\n}")
    >>> tune(program, device=CPU) is program
    True
    """
    if tuning() != "on" or current().config is not None:
        return module
    found: dict[str, tuple[float, CallValues]] = {}
    for function in module.functions.values():
        if FUSED in function.attrs:
            continue
        for binding in bindings(function):
            value = binding.value
            if not isinstance(value, Call) or not isinstance(value.callee, Op):
                continue
            call = declared_call(value.callee, value, device)
            if call.callee is None or isinstance(call.out, View) or not isinstance(call.out, Type):
                continue
            found[str(call)] = work_of(value).time, call
    longest_first = sorted(found.values(), key=lambda pair: -pair[0])
    with configurations(Breadth.UNFUSED):
        measure([call for _, call in longest_first], device)
    return module


def measure(subjects: Sequence[CallValues | Function], device: Device) -> None:
    """Measure calls and fused functions of which nothing is known, where that is asked for, in this
    order and with a progress bar.
    """
    with bar(len(subjects), "measuring kernels", delay=1.0) as progress:
        shown = 0
        for done in measure_missing(subjects, device):
            progress.update(done - shown)
            shown = done


def configure(module: Module, *, device: Device) -> Module:
    """Let fused kernels, and those that found nobody to fuse with, be launched as measuring says is
    fastest, where they were measured. Where that is asked for, what is not is measured now.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> program = parse("func @main(%x: float32[2]) -> float32[2] {\\n  return %x\\n}")
    >>> configure(program, device=CPU) is program
    True
    """
    if tuning() == "off":
        return module
    subjects: list[CallValues | Function] = []
    for function in module.functions.values():
        if FUSED in function.attrs:
            subjects.append(function)
            continue
        calls = (_alone(binding, device) for binding in bindings(function))
        subjects += [call for call in calls if call is not None]
    if not subjects:
        return module
    measure(subjects, device)

    def rule(function: Function) -> Function:
        if FUSED not in function.attrs:
            return rewrite_function(function, call_rule)
        config = _config(function, function.attrs[FUSED], device)
        if config is None or config_text(config) == function.attrs.get(CONFIG, ""):
            return function  # perhaps as the call that it was made of
        attrs = {n: value for n, value in function.attrs.items() if n != CONFIG}
        if config:
            attrs[CONFIG] = config_text(config)
        return replace(function, attrs=attrs)

    def call_rule(binding: Binding) -> Binding:
        call = _alone(binding, device)
        if call is None:
            return binding
        value = binding.value
        assert isinstance(value, Call) and isinstance(value.callee, DialectOp)
        config = _config(call, value.callee.dialect.name, device)
        return (
            with_value(binding, Call(value.callee.configured(config), value.args))
            if config
            else binding
        )

    return map_functions(module, rule)


def _alone(binding: Binding, device: Device) -> CallValues | None:
    """Return the call of a binding if its kernel is one that could have been part of another, and
    nobody has said how it is launched.
    """
    value = binding.value
    if not isinstance(value, Call) or not isinstance(value.callee, DialectOp):
        return None
    if not value.callee.fuses or value.callee.config is not None:
        return None
    return declared_call(value.callee.base, value, device)


def _config(subject: CallValues | Function, dialect: str, device: Device) -> Config | None:
    """Return the configuration in which a dialect is the fastest; None where nobody knows."""
    race = race_of(subject, device)
    found = None if race is None else choose(race.costs, [dialect])
    return None if found is None else found.config
