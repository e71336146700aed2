"""Runs a random graph through `from_onnx` and compares with the reference evaluator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

import meta
from meta.frontend import from_onnx
from tools.fuzz_models.face import Failure
from tools.fuzz_models.onnx_graphs.program import Program, expected

EXECUTORS = ("eager", "compiled", "named")
"""Operator by operator, compiled for each size, and compiled once for extents that have names."""
ROUNDING = {"float32": 1e-5, "float64": 1e-12, "float16": 4e-3}
TARGETS = {1: "float32", 10: "float16", 11: "float64"}
LIMITS = (
    "which has to be a number",
    "depends? on the values of inputs",
    "not known while converting",
    "extents that depend on values",
    "must be a vector of known extent",
    "whole numbers only",
    r"are not all of the axis of \?",
)
"""What errors say that name a limit, which docs/frontends.md has."""
NAMED_LIMITS = (
    *LIMITS,
    "for all extents",
    "extents? .* (known|named|symbolic)",
    "a static shape is needed here",
    "which is symbolic",
)


@dataclass(frozen=True)
class Way:
    """How a graph is run: by which executor, on which dialect and device."""

    executor: str
    dialect: str
    device: str = "cpu"

    def __str__(self) -> str:
        return " ".join((self.executor, self.dialect, *([self.device] * (self.device != "cpu"))))


def check(program: Program, way: Way) -> Failure | None:
    """Return what is wrong with the results; None if nothing is."""
    wanted = expected(program)
    stage = "import"
    try:
        with meta.dialect.prefer(way.dialect):
            model = from_onnx(program.model())
            run = model
            for i, values in enumerate(program.runs):
                given = [meta.array(values[n], device=way.device) for n in model.input_names]
                stage = f"run {i}"
                if way.executor == "compiled":
                    run = meta.vm.compile(model, *given)
                elif way.executor == "named" and i == 0:
                    run = _compiled_for_names(model, program)
                found = run(*given)
                failure = _differing(program, found, wanted[i], i)
                if failure is not None:
                    return failure
    except meta.MetaError as error:
        return _refusal(error, way, stage)
    except Exception as error:
        return Failure("raw", f"{stage} {type(error).__name__}", _text(error))
    return None


def _compiled_for_names(model: Any, program: Program) -> Any:
    """Return the program for inputs whose extents are named as the graph names them."""
    dims = {}
    types = []
    for name in model.input_names:
        shape = program.dims[name]
        if shape is None:
            shape = tuple(np.shape(program.runs[0][name]))
        for axis, dim in enumerate(shape):
            if isinstance(dim, str):
                least = min(np.shape(run[name])[axis] for run in program.runs)
                dims[dim] = (min(least, 1), 64)
        dtype = program.runs[0][name].dtype.name
        types.append(meta.ir.parse_type(f"{dtype}[{', '.join(map(str, shape))}]"))
    return meta.vm.compile(model, *types, dims=dims) if dims else model


def _refusal(error: meta.MetaError, way: Way, stage: str) -> Failure | None:
    """Return the failure that an error is; None where it names a limit."""
    cause = error.__cause__
    if cause is not None and not isinstance(cause, meta.MetaError):
        return Failure("raw", f"{stage} {type(cause).__name__}", _text(error))
    limits = NAMED_LIMITS if way.executor == "named" else LIMITS
    if any(re.search(limit, str(error)) for limit in limits):
        return None
    return Failure("refused", f"{stage} {type(error).__name__}", _text(error))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _rounding(program: Program) -> float:
    """Return what rounding does in the narrowest of the dtypes that a graph has."""
    given = [v for values in (program.constants, program.runs[0]) for v in values.values()]
    narrow = {v.dtype.name for v in given} | {
        TARGETS[a.i]
        for n in program.nodes
        for a in n.attribute
        if a.name in ("to", "dtype") and a.i in TARGETS
    }
    if any(n.op_type == "ConstantOfShape" for n in program.nodes):
        narrow.add("float32")
    return max((r for d, r in ROUNDING.items() if d in narrow), default=ROUNDING["float32"])


def _differing(program: Program, found: Any, wanted: Any, run: int) -> Failure | None:
    results = list(found) if isinstance(found, tuple) else [found]
    rounding = _rounding(program)
    for i, (one, (value, spread)) in enumerate(zip(results, wanted, strict=True)):
        name, values, value = program.outputs[i], one.numpy(), np.asarray(value)
        where = f"{name}, run {run}"
        if values.dtype != value.dtype or values.shape != value.shape:
            text = (
                f"{where}: {values.dtype}{list(values.shape)}, not {value.dtype}{list(value.shape)}"
            )
            return Failure("wrong type", name, text, i)
        if value.dtype.kind != "f":
            if not np.array_equal(values, value):
                return Failure("wrong value", name, f"{where}: {values!r}, not {value!r}", i)
            continue
        a, b = values.astype(np.float64), value.astype(np.float64)
        largest = max(1.0, float(np.abs(b).max(initial=0)))
        bound = 20 * spread + rounding * largest
        error = np.abs(a - b)
        if not (error <= bound).all():
            most = np.min(bound)
            text = f"{where}: off by {error.max():.2e}, {most:.1e} is allowed: {a!r}, not {b!r}"
            return Failure("wrong value", name, text, i)
    return None
