"""What kernels cost, as data: what is measured, of which call, and what is chosen by it.

A *race* measures all candidates of one call together, and each in all configurations that it lists.
`store.py` keeps races between processes, `chooser.py` says when one is run and asked for.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from meta.base import config
from meta.base.device import Device
from meta.dialect.core.fused import CONFIG, FUSED
from meta.dialect.core.openv import config_of, config_text
from meta.dialect.core.preference import Config
from meta.dialect.core.scope import marks
from meta.ir import Call, Expr, Function, Tuple, Var, type_of
from meta.ir.expr import OpNode
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.slot import Slot

Subject = CallValues | Function
"""What a kernel runs: a call of an operator, or a fused function."""
MARGIN = 0.03
"""By how much another candidate must be faster than the one that priority chooses."""
BYTES = ("inputs", "outputs", "weights", "gradients", "state", "workspace")


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one run: median, 20th and 80th percentile of ``count`` samples."""

    median: float
    p20: float
    p80: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        """Return what samples say; a percentile is between two of them linearly."""
        several = samples if len(samples) > 1 else [*samples] * 2
        p20, _, _, p80 = quantiles(several, n=5, method="inclusive")
        return cls(median(samples), p20, p80, len(samples))

    def __str__(self) -> str:
        return f"{self.median:.2f} us ({self.p20:.2f} to {self.p80:.2f}, {self.count} samples)"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one candidate of a call costs, or why it does not take part.

    Attributes
    ----------
    dialect, config: whose kernel, and how it is launched. forward, backward: one run, and one of
    the program of its gradient; None if it was not timed. host: microseconds that a launch takes
    on the host. compile: milliseconds of making the kernel. bytes: by `BYTES`. refused: why it was
    left out, empty if it was not. source: a hash of the source of the dialect.
    """

    dialect: str
    config: Config = ()
    forward: Timing | None = None
    backward: Timing | None = None
    host: float | None = None
    compile: float | None = None
    bytes: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""
    source: str = ""

    @property
    def median(self) -> float:
        """The microseconds of one run; infinite where it was not timed."""
        return math.inf if self.forward is None else self.forward.median

    @property
    def p20(self) -> float:
        """The 20th percentile of the microseconds of one run."""
        return math.inf if self.forward is None else self.forward.p20

    @property
    def name(self) -> str:
        """The dialect, and the configuration if it is not the default."""
        return f"{self.dialect}@{config_text(self.config)}" if self.config else self.dialect

    def record(self) -> dict[str, Any]:
        """Return this as values that JSON has."""

        def timing(one: Timing | None) -> list[float] | None:
            return None if one is None else [one.median, one.p20, one.p80, one.count]

        return {
            "dialect": self.dialect,
            "config": config_text(self.config),
            "forward_us": timing(self.forward),
            "backward_us": timing(self.backward),
            "host_us": self.host,
            "compile_ms": self.compile,
            "bytes": dict(self.bytes),
            "refused": self.refused,
            "source": self.source,
        }


def cost_of_record(record: Any) -> Cost:
    """Return the cost that a record describes; ValueError, KeyError or TypeError for no such."""

    def number(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
            raise ValueError(value)
        return float(value)

    def timing(value: Any) -> Timing | None:
        if value is None:
            return None
        median, p20, p80 = map(number, value[:3])
        if len(value) != 4 or type(value[3]) is not int or not (p20 <= median <= p80):
            raise ValueError(value)
        return Timing(median, p20, p80, value[3])

    def word(value: Any) -> str:
        if type(value) is not str:
            raise ValueError(value)
        return value

    return Cost(
        dialect=word(record["dialect"]),
        config=config_of(word(record["config"])),
        forward=timing(record["forward_us"]),
        backward=timing(record["backward_us"]),
        host=None if record["host_us"] is None else number(record["host_us"]),
        compile=None if record["compile_ms"] is None else number(record["compile_ms"]),
        bytes={word(name): int(number(size)) for name, size in dict(record["bytes"]).items()},
        refused=word(record["refused"]),
        source=word(record["source"]),
    )


@dataclass(frozen=True, slots=True)
class Key:
    """What a race is about.

    Attributes
    ----------
    operator: the base operator's name, or of a fused function the dialect's that runs it. call: the
    call with the types of its arguments, or the text of the function. how: "graph" or "eager", and
    the scopes of vendors in force.
    tf32: whether float32 may be rounded to TensorFloat-32.
    """

    operator: str
    call: str
    device: Device
    how: str
    tf32: bool

    def record(self) -> dict[str, Any]:
        """Return this as values that JSON has."""
        return {
            "operator": self.operator,
            "call": self.call,
            "how": self.how,
            "tf32": self.tf32,
        }

    @property
    def file(self) -> str:
        """The name of the file of the race."""
        return digest(json.dumps(self.record(), sort_keys=True)) + ".json"


class Breadth(IntEnum):
    """Whose configurations take part in a race, besides the defaults of all."""

    DEFAULTS = 0  # nobody's
    LIBRARIES = 1  # those of kernels that nobody has to compile
    UNFUSED = 2  # not those of kernels that fuse with their neighbours, which are others then
    ALL = 3


@dataclass(frozen=True, slots=True)
class Race:
    """The costs of all candidates of a call, in the order in which dispatch asks them.

    when: seconds since 1970. place: the file, None if it is in memory only. bucket: whether it was
    run with neighbouring extents. breadth: whose configurations took part.
    """

    key: Key
    costs: tuple[Cost, ...]
    when: float
    place: Path | None = None
    bucket: bool = False
    breadth: Breadth = Breadth.ALL

    def of(self, dialect: str, config: Config = ()) -> Cost | None:
        """Return what was measured of a candidate, None if it was not there."""
        found = (c for c in self.costs if (c.dialect, c.config) == (dialect, config))
        return next(found, None)


def key_of(subject: Subject, device: Device, how: str) -> Key:
    """Return the key of a call, or of a fused function. ``how``: "graph" (on CUDA, within a CUDA
    graph) or "eager"; whose kernels and configurations of vendors take part is added to it.
    """
    how = how if device.kind == "cuda" else "eager"
    chips = marks(device)
    how = f"{how}; {chips}" if chips else how
    tf32 = device.kind == "cuda" and bool(config.get("META_TF32"))
    if isinstance(subject, Function):
        dialect = str(subject.attrs[FUSED])
        return Key(dialect, _function_text(subject), device, how, tf32)
    return Key(subject.op.name, _call_text(subject, _same), device, how, tf32)


def bucket_of(call: CallValues, device: Device, how: str) -> Key:
    """Return the key of all calls with about these extents, under which what was measured of one
    is found for the others.

    An extent counts as the next one of 2**k and 3 * 2**k. How rows are aligned changes which
    kernels there are, so that the last one counts together with the power of two, up to 16, by
    which it is divisible.
    """
    exact = key_of(call, device, how)
    return replace(exact, call=f"about {_call_text(call, _rounded)}")


def _same(type_: TensorType) -> object:
    """Return a type as it is in an exact key."""
    return type_


def _rounded(type_: TensorType) -> object:
    """Return a type as it is in the key of a bucket."""
    shape = [_next(extent) for extent in type_.static_shape]
    aligned = math.gcd(type_.static_shape[-1], 16) if shape else 0
    return f"{type_.dtype}{shape}/{aligned}"


def _next(extent: int) -> int:
    power = 1 << max(extent - 1, 0).bit_length()
    return 3 * power // 4 if power >= 4 and extent <= 3 * power // 4 else power if extent else 0


def _call_text(call: CallValues, shown: Callable[[TensorType], object]) -> str:
    """Return a call without what costs nothing: the values of its run-time numbers."""

    def argument(slot: Slot, value: Any) -> object:
        if isinstance(value, TensorType):
            return shown(value)
        if slot.kind == "attribute":
            return repr(value)
        if isinstance(value, tuple):
            return f"({', '.join(str(shown(t)) for t in value)})"
        return None if value is None else type(value).__name__

    pairs = zip(call.op.slots, call.args, strict=True)
    return f"{call.op.name}({', '.join(f'{s.name}={argument(s, a)}' for s, a in pairs)})"


def _function_text(function: Function) -> str:
    """Return a fused function without the names of its variables."""
    names: dict[Any, str] = {}

    def shown(value: Any) -> str:
        if isinstance(value, Tuple):
            return f"({', '.join(map(shown, value.fields))})"
        if isinstance(value, OpNode):
            return value.name
        if isinstance(value, Var):
            return names[value]
        return str(type_of(value)) if isinstance(value, Expr) else repr(value)

    for parameter in function.params:
        names[parameter] = f"%{len(names)}"
    given = ", ".join(f"{names[p]}: {p.type}" for p in function.params)
    lines = [f"({given}) {sorted((k, v) for k, v in function.attrs.items() if k != CONFIG)}"]
    for binding in function.body.bindings:
        names[binding.var] = f"%{len(names)}"
        value = binding.value
        inner = (value.callee, value.args) if isinstance(value, Call) else (value, ())
        args = ", ".join(map(shown, inner[1]))
        lines.append(f"{names[binding.var]}: {binding.var.type} = {shown(inner[0])}({args})")
    return "; ".join([*lines, shown(function.body.result)])


def contenders(
    costs: Sequence[Cost], order: Sequence[str], preferred: Sequence[str] = ()
) -> list[Cost]:
    """Return the candidate that priority chooses, the first of ``order`` in its default
    configuration, then of each dialect the fastest of those that beat it: that are faster by more
    than `MARGIN`, and whose 20th percentile is below its own. Nothing where that is not known.

    order: the dialects as priority has them, those that may not be chosen left out. preferred:
    those that the user prefers, of which the first that takes the call contends alone, in all its
    configurations, whatever others cost.
    """
    takes = {cost.dialect for cost in costs if not cost.refused}
    alone = next((name for name in order if name in preferred and name in takes), None)
    rank = {dialect: i for i, dialect in enumerate(order if alone is None else [alone])}
    able = [cost for cost in costs if not cost.refused and cost.dialect in rank]
    able.sort(key=lambda cost: rank[cost.dialect])  # stable: a default is before its alternatives
    timed = [cost for cost in able if cost.forward is not None]
    first = next((cost for cost in timed if not cost.config), None)
    if first is None or any(
        cost.forward is None and rank[cost.dialect] < rank[first.dialect] for cost in able
    ):
        return []
    fastest: dict[str, Cost] = {}
    for cost in timed:
        faster = cost.median < first.median * (1 - MARGIN) and cost.p20 < first.p20
        if faster and cost.median < fastest.get(cost.dialect, first).median:
            fastest[cost.dialect] = cost
    return [first, *fastest.values()]


def choose(
    costs: Sequence[Cost], order: Sequence[str], preferred: Sequence[str] = ()
) -> Cost | None:
    """Return the candidate to run: the fastest of the `contenders`, of equals the first; None if
    that cannot be said.
    """
    found = contenders(costs, order, preferred)
    return min(found, key=lambda cost: cost.median, default=None)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
