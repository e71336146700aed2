"""How long a program will take, by what was measured of its calls.

A call that was measured takes what its kernel took then; of any other an estimate is made from what
it does and what the device can do (`peaks`). A program takes the sum. `meta.analysis.cost` shows it
as a report, and passes that have two programs to choose between ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from meta.base.device import Device
from meta.cost.chooser import how_in_programs, known_race
from meta.cost.flops import ProgramTotal, Work, function_work, work_of
from meta.cost.record import Cost, Key, Race, choose, key_of
from meta.cost.roofline import Peaks, peaks_of
from meta.dialect.core import FUSED, DialectOp
from meta.dialect.core.fused import CONFIG
from meta.dialect.core.ir_calls import kernel_call, leaf_types
from meta.dialect.core.openv import config_of
from meta.dialect.core.preference import Config
from meta.ir import (
    Binding,
    Block,
    Call,
    Function,
    GlobalVar,
    If,
    Module,
    TensorType,
    Type,
)


@dataclass(frozen=True, slots=True)
class Time:
    """Microseconds: those of kernels that were measured, and those that are an estimate."""

    measured: float = 0.0
    estimated: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.measured + self.estimated

    def __add__(self, other: Time) -> Time:
        return Time(self.measured + other.measured, self.estimated + other.estimated)


NO_TIME = Time()


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that a program runs once per run of its block.

    Attributes
    ----------
    key: under which what was measured of it is kept. operator: the base operator or the fused
    function. kernel: whose it is, with its configuration; empty if nobody says. time: of one run.
    """

    key: Key
    operator: str
    kernel: str
    time: Time


class Predictor(ProgramTotal[Time]):
    """Predicts parts of a typed module, at any stage of compilation, on a device.

    how: "graph" or "eager", as the calls of the program are run.
    """

    def __init__(self, module: Module, device: Device, how: str | None = None) -> None:
        super().__init__(module, self._time, NO_TIME, lambda time: time.total)
        self.device = device
        self.how = how_in_programs(device) if how is None else how

    @cached_property
    def peaks(self) -> Peaks:
        """What the device can do."""
        return peaks_of(self.device)

    def _time(self, binding: Binding) -> Time | None:
        launch = self.launch(binding)
        return None if launch is None else launch.time

    def launch(self, binding: Binding) -> Launch | None:
        """Return the kernel that a binding runs, None if it runs none or calls a function."""
        value = binding.value
        if not isinstance(value, Call):
            return None
        if isinstance(value.callee, GlobalVar):
            function = self.module.functions[value.callee.name]
            return self._fused(value.callee.name, function) if FUSED in function.attrs else None
        return self._call(value)

    def launches(self, without: str | None = None) -> Iterator[Launch]:
        """Yield every kernel of the module, once for each place that names it, but for those of
        the function ``without``.
        """
        for name, function in self.module.functions.items():
            if FUSED not in function.attrs and name != without:
                yield from self._of_block(function.body)

    def _of_block(self, block: Block) -> Iterator[Launch]:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, If):
                yield from self._of_block(value.then_block)
                yield from self._of_block(value.else_block)
            elif (found := self.launch(binding)) is not None:
                yield found

    def _fused(self, name: str, function: Function) -> Launch:
        types = (*(p.type for p in function.params), function.result_type)
        work = function_work(function)
        key = key_of(function, self.device, self.how)
        dialect = str(function.attrs[FUSED])
        config = config_of(str(function.attrs.get(CONFIG, "")))
        race = known_race(function, self.device, self.how)
        return self._launch(key, race, name, dialect, config, work, types)

    def _call(self, call: Call) -> Launch | None:
        values = kernel_call(call, self.device)
        if values is None:
            return None
        key = key_of(values, self.device, self.how)
        race = known_race(values, self.device, self.how)
        dialect = ""
        config: Config = ()
        if isinstance(call.callee, DialectOp):
            dialect, config = call.callee.dialect.name, call.callee.config or ()
        types = (*values.tensors(), *values.outputs)
        return self._launch(key, race, values.op.name, dialect, config, work_of(call), types)

    def _launch(
        self,
        key: Key,
        race: Race | None,
        operator: str,
        dialect: str,
        config: Config,
        work: Work,
        types: Iterable[Type | None],
    ) -> Launch:
        cost = None if race is None else _chosen(race, dialect, config)
        if cost is None or cost.forward is None:
            time = Time(estimated=self.peaks.estimate(work, _dtype(types)))
            return Launch(key, operator, dialect, time)
        took = cost.median
        if self.how == "eager" and cost.host is not None and self.device.kind != "cpu":
            took = max(took, cost.host)  # the device waits for the host
        return Launch(key, operator, cost.name, Time(measured=took))


def _chosen(race: Race, dialect: str, config: Config) -> Cost | None:
    """Return what was measured of the kernel that runs a call, None if it was not: of a dialect in
    a configuration, or, where no dialect is named, of the one that will be chosen.
    """
    if dialect:
        return race.of(dialect, config)
    return choose(race.costs, list(dict.fromkeys(c.dialect for c in race.costs)))


def _dtype(types: Iterable[Type | None]) -> str:
    """Return the dtype that arithmetic is done in: that of the first floating point tensor."""
    leaves = (t for one in types if one is not None for t in leaf_types(one))
    found = (t.dtype for t in leaves if isinstance(t, TensorType) and "float" in t.dtype)
    return next(found, "float32")
