"""What `rent.py` measures: `rows`, programs to compile, and `features`, which can be left out."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from turns import in_turns, on_device

import meta
from meta.dialect.core.preference import forget
from meta.vm.compiler.pipeline import STEPS, PassContext

ROUNDS, LEAST_CALLS, TURN_SECONDS = 7, 3, 0.03


@dataclass(frozen=True)
class Row:
    """A program. ``make`` returns the program and its inputs. model: a whole one, or a kernel.

    precision: of products, "tf32" or another.
    """

    name: str
    make: Callable[[], tuple[Any, Sequence[Any]]]
    device: str
    model: bool
    precision: str = "float32"


@dataclass(frozen=True)
class Feature:
    """Something that `off` switches off in a block. code: what is switched off makes machine code
    of kernels, which a program's text does not show."""

    name: str
    off: Callable[[], AbstractContextManager[Any]]
    code: bool = False


def features(device: str) -> dict[str, Feature]:
    """Return by name: the passes that programs can do without, the files of rules, and the rules
    of the schedule of a device."""
    found = [Feature(step.name, _without_pass(step.name)) for step in STEPS if step.level > 0]
    found += [
        Feature(f"simplify.{name}", _without_rules(name))
        for name in ("arithmetic", "casts", "shapes")
    ]
    if device == "cuda":
        names = ("windows", "rows", "reductions", "transposes")
        found += [Feature(f"schedule.{name}", _without_kernels(name), True) for name in names]
    else:
        found += [
            Feature(f"schedule.{name}", _replaced("schedule_cpu", name, instead), True)
            for name, instead in (
                ("_one_pass", lambda *_: None),
                ("_share_rows", lambda *_: None),
                ("_partial_results", _single_piece),
            )
        ]
    return {part.name: part for part in found}


def _without_pass(name: str) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: PassContext(disabled=[name])


def _without_rules(name: str) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def off() -> Iterator[None]:
        from meta.passes.simplify.table import RULES

        kept, module = dict(RULES._rules), f"meta.passes.simplify.{name}"
        for called, rules in kept.items():
            RULES._rules[called] = [rule for rule in rules if rule.__module__ != module]
        try:
            yield
        finally:
            RULES._rules.update(kept)

    return off


def _without_kernels(name: str) -> Callable[[], AbstractContextManager[Any]]:
    schedule = importlib.import_module("meta.dialect.tvm.schedule_cuda")
    kernels = tuple(k for k in schedule.KERNELS if k is not getattr(schedule, name).kernel)
    assert len(kernels) == len(schedule.KERNELS) - 1
    return _replaced("schedule_cuda", "KERNELS", kernels, name)


def _replaced(
    module: str, name: str, instead: Any, label: str | None = None
) -> Callable[[], AbstractContextManager[Any]]:
    """Return a block in which a module has something else; its kernels have keys of their own."""

    @contextmanager
    def off() -> Iterator[None]:
        build = importlib.import_module("meta.dialect.tvm.build")
        forget()
        schedule = importlib.import_module(f"meta.dialect.tvm.{module}")
        kept = getattr(schedule, name), build.RULES, build._kernels
        setattr(schedule, name, instead)
        build.RULES, build._kernels = f"{build.RULES} without {label or name}", {}
        try:
            yield
        finally:
            setattr(schedule, name, kept[0])
            build.RULES, build._kernels = kept[1:]
            forget()

    return off


def _single_piece(sch: Any, stage: Any) -> list[Any]:
    """Return a stage as one piece, reductions as they are."""
    from meta.dialect.tvm.schedule_cpu import Piece

    return [Piece(stage.block, stage.spatial, stage.work, stage)]


def rows(device: str) -> dict[str, Row]:
    """Return the models and kernels of a device, by name."""
    found = _cuda_rows() if device == "cuda" else _cpu_rows()
    return {row.name: row for row in found}


def _cpu_rows() -> Iterator[Row]:
    from kernel_list import KERNELS
    from kernels_cpu import inputs_of
    from models import MODES, NETWORKS, row_of

    def of_kernel(kernel: Any) -> tuple[Any, Sequence[Any]]:
        return _traced(kernel.meta), [meta.array(t) for t in inputs_of(kernel)]

    for network in NETWORKS:
        for mode in MODES:
            make = partial(_of_model, row_of(network, mode), "cpu")
            yield Row(f"{network} {mode}", make, "cpu", True)
    for kernel in KERNELS:
        yield Row(kernel.name, partial(of_kernel, kernel), "cpu", False)


def _cuda_rows() -> Iterator[Row]:
    from kernel_list_cuda import KERNELS
    from kernels_cuda import DTYPES, inputs_of
    from models.cuda_rows import ROWS

    def of_kernel(kernel: Any, dtype: torch.dtype) -> tuple[Any, Sequence[Any]]:
        return _traced(kernel.meta), [meta.array(t) for t in inputs_of(kernel, dtype)]

    for name, row in ROWS.items():
        yield Row(name, partial(_of_model, row, "cuda"), "cuda", True, row.precision)
    for kernel in KERNELS:
        for precision in kernel.precisions:
            make = partial(of_kernel, kernel, DTYPES[precision])
            yield Row(f"{kernel.name}, {precision}", make, "cuda", False, precision)


def _of_model(row: Any, device: str) -> tuple[Any, Sequence[Any]]:
    from models.contenders import program

    task = row.task(False)
    return program(row, task, task.ours().to(device=device), device)


def _traced(function: Callable[..., Any]) -> Any:
    def traced(*args: Any) -> Any:
        return function(*args)

    return meta.model.trace(traced)


def measure(row: Row, parts: Sequence[Feature], lock: Any) -> Iterator[dict[str, Any]]:
    """Iterate over records of the parts that change a row: *time* and *memory* without the part
    as a multiple of those with it, or *needed*, why it cannot be compiled without."""
    with _precision(row):
        program, inputs = row.make()

        def compiled() -> Any:
            graph = None if row.model else False
            options = {"cuda_graph": graph} if row.device == "cuda" else {}
            return meta.vm.compile(program, *inputs, device=row.device, **options)

        with meta.base.config.override(META_PROGRAM_CACHE=False):
            usual = compiled()
            text, peak = str(usual.module), usual.memory().peak
            for part in parts:
                record: dict[str, Any] = {"part": part.name, "model": row.model}
                try:
                    with part.off():
                        other = compiled()
                except meta.MetaError as error:
                    yield record | {"needed": str(error).partition("\n")[0]}
                    continue
                if not part.code and str(other.module) == text:
                    continue
                with lock if row.device == "cuda" else nullcontext():
                    calls = partial(usual, *inputs), partial(other, *inputs)
                    with_part, without_part = _timed(row, *calls)
                memory = (other.memory().peak or 1) / (peak or 1)
                yield record | {"time": without_part / with_part, "memory": memory}
                del other, calls
                gc.collect()


def _precision(row: Row) -> AbstractContextManager[Any]:
    if row.device == "cpu":
        return nullcontext()
    from kernels_cuda import precise

    return precise(row.precision)


def _timed(row: Row, *calls: Callable[[], Any]) -> list[float]:
    """Return the times of calls that take turns."""
    named = {str(i): call for i, call in enumerate(calls)}
    if row.device == "cpu":
        return list(in_turns(named, ROUNDS, TURN_SECONDS).values())
    if row.model:
        return list(on_device(named, ROUNDS, LEAST_CALLS).values())
    from kernels_cuda import timed

    return list(timed(named).values())
