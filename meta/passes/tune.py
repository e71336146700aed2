"""Measuring what a program calls, and choosing by it how its kernels are launched.

Which dialect runs a call is chosen by `dispatch`, which finds what `tune` measured. Kernels that a
backend may fuse with others take part there in their default configuration: they are others then.
In which one each kernel is launched in the end is up to `configure`. Patterns of dialects whose
calls are faster one by one are undone by `split_patterns`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from meta.base.device import Device
from meta.base.progress import bar
from meta.cost.chooser import chooses, configurations, measure_missing, race_of, tuning
from meta.cost.flops import work_of
from meta.cost.record import MARGIN, Breadth, Cost, choose
from meta.dialect.core import FUSED, KERNEL, DialectOp
from meta.dialect.core.dispatch import choice
from meta.dialect.core.fused import CONFIG
from meta.dialect.core.ir_calls import kernel_call
from meta.dialect.core.openv import config_text
from meta.dialect.core.preference import Config, Preference, current
from meta.ir import Binding, Call, Expr, Function, Module, bindings
from meta.op.core import CallValues, Op
from meta.passes.dead_code import dead_code
from meta.passes.inline import inline
from meta.passes.rewrite import map_functions, rewrite_function, with_value


def tune(module: Module, *, device: Device) -> Module:
    """Measure the candidates of each operator call that was never measured (META_TUNE=on, or within
    `meta.cost.measured`), those that seem to take longest first; the program stays as it is.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> program = parse("func @main(%x: float32[2]) -> float32[2] {\\n  return %x\\n}")
    >>> meta.passes.tune(program, device=CPU) is program
    True
    """
    if tuning() != "on" or current().config is not None:
        return module
    functions = (f for f in module.functions.values() if FUSED not in f.attrs)
    values = [binding.value for function in functions for binding in bindings(function)]
    calls = longest_first([v for v in values if isinstance(called(v), Op)], device)
    with configurations(Breadth.UNFUSED):
        measure(list({str(call): call for call in calls}.values()), device)
    return module


def called(value: Expr) -> Expr | None:
    """Return what a value calls; None if it calls nothing."""
    return value.callee if isinstance(value, Call) else None


def longest_first(values: Sequence[Expr], device: Device) -> list[CallValues]:
    """Return the calls that kernels run, those that seem to take longest first."""
    found = [
        (work_of(value).time, call)
        for value in values
        if isinstance(value, Call) and (call := kernel_call(value, device)) is not None
    ]
    return [call for _, call in sorted(found, key=lambda pair: -pair[0])]


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
    >>> meta.passes.configure(program, device=CPU) is program
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
    return kernel_call(value, device)


def _config(subject: CallValues | Function, dialect: str, device: Device) -> Config | None:
    """Return the configuration in which a dialect is the fastest; None where nobody knows."""
    race = race_of(subject, device)
    found = None if race is None else choose(race.costs, [dialect])
    return None if found is None else found.config


def split_patterns(module: Module, *, device: Device) -> Module:
    """Undo what `fuse_dialect` did where the kernels of the calls by themselves were measured to
    take less than the one of the pattern: by more than `MARGIN`, and with a lower 20th percentile.

    Both have to be measured; where that is asked for (META_TUNE=on, or within
    `meta.cost.measured`), what is not is measured now, after the calls that the program makes
    (`tune`). What the calls save when they fuse with others is not counted, so that the choice is
    right with it, too. A pattern of a dialect that the user prefers stays.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> program = parse("func @main(%x: float32[2]) -> float32[2] {\\n  return %x\\n}")
    >>> meta.passes.split_patterns(program, device=CPU) is program
    True
    """
    if not chooses(device) and tuning() != "on":
        return module
    questions = {
        name: _is_slower(function, device, current())
        for name, function in module.functions.items()
        if KERNEL in function.attrs
    }
    with configurations(Breadth.UNFUSED):
        answers = _answered(questions, device)
    slower = {
        n: replace(module.functions[n], attrs={}) for n, is_slower in answers.items() if is_slower
    }
    return (
        dead_code(inline(module.with_functions({**module.functions, **slower})))
        if slower
        else module
    )


Question = Generator[CallValues | Function, None, bool]
"""Gives what has to be measured before it goes on."""


def _answered(questions: Mapping[str, Question], device: Device) -> dict[str, bool]:
    """Return the answers to questions, for which what is not known is measured together."""
    answers: dict[str, bool] = {}
    while len(answers) < len(questions):
        wanted = []
        for name, question in questions.items():
            if name not in answers:
                try:
                    wanted.append(next(question))
                except StopIteration as done:
                    answers[name] = done.value
        measure(wanted, device)
    return answers


def _is_slower(function: Function, device: Device, preference: Preference) -> Question:
    """Whether the kernel of a pattern is known to take longer than those of its calls."""
    dialect = str(function.attrs[FUSED])
    if dialect in preference.first:
        return False
    yield function
    race = race_of(function, device)
    together = None if race is None else choose(race.costs, [dialect])
    if together is None:
        return False
    values = [binding.value for binding in bindings(function)]
    if not all(isinstance(called(value), Op) for value in values):
        return False
    median = p20 = 0.0
    for call in longest_first(values, device):
        yield call
        cost = choice(call, preference)[1]
        if not isinstance(cost, Cost):
            return False
        median, p20 = median + cost.median, p20 + cost.p20
        if median >= (1 - MARGIN) * together.median:
            return False  # before any other is measured
    return p20 < together.p20
