"""Measuring what a program calls, and choosing by it how its fused kernels are launched.

Which dialect runs a call is chosen by `dispatch`, which finds what `tune` measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meta.base.device import Device
from meta.base.progress import bar
from meta.dialect.core import FUSED
from meta.dialect.core.fused import CONFIG
from meta.dialect.core.openv import config_text
from meta.dialect.core.preference import current, tuning
from meta.dialect.core.tuning import choice, measure_missing, race_of
from meta.ir import Call, Function, Module, Type, bindings
from meta.op.core import CallValues, Op, View
from meta.passes.dispatch import prepared
from meta.passes.rewrite import each_function
from meta.passes.work import work_of


def tune(module: Module, *, device: Device) -> Module:
    """Measure the candidates of each operator call that was never measured (META_TUNE=on, or within
    `meta.dialect.measured`), those that seem to take longest first; the program stays as it is.

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
            call = prepared(value.callee, value, device)
            if call.callee is None or isinstance(call.out, View) or not isinstance(call.out, Type):
                continue
            found[str(call)] = work_of(value).time, call
    longest_first = sorted(found.values(), key=lambda pair: -pair[0])
    _measure([call for _, call in longest_first], device)
    return module


def _measure(subjects: Sequence[CallValues | Function], device: Device) -> None:
    with bar(len(subjects), "measuring kernels", delay=1.0) as progress:
        shown = 0
        for done in measure_missing(subjects, device):
            progress.update(done - shown)
            shown = done


def configure(module: Module, *, device: Device) -> Module:
    """Let fused kernels be launched as measuring says is fastest, where it was measured.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> program = parse("func @main(%x: float32[2]) -> float32[2] {\\n  return %x\\n}")
    >>> configure(program, device=CPU) is program
    True
    """

    def rule(function: Function) -> Function:
        dialect = function.attrs.get(FUSED)
        if dialect is None:
            return function
        race = race_of(function, device)
        found = None if race is None else choice(race, [dialect])
        if found is None or config_text(found.config) == function.attrs.get(CONFIG, ""):
            return function  # perhaps as the call that it was made of
        attrs = {n: value for n, value in function.attrs.items() if n != CONFIG}
        if found.config:
            attrs[CONFIG] = config_text(found.config)
        return replace(function, attrs=attrs)

    fused = [function for function in module.functions.values() if FUSED in function.attrs]
    if not fused or tuning() == "off":
        return module
    _measure(fused, device)
    return each_function(module, rule)
