"""Examples of operators: the calls of their test records as text that runs, with what they return.

A test record says what arguments an operator takes (`meta.testing.OpCase`). The first of its calls
that can be written down, and that runs on ATen's kernels, is the example.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import meta
from meta.base.errors import MetaError
from meta.op.core import Op
from meta.testing.case import ErrorSample, Sample, Spec
from meta.testing.records import cases_folder, load_cases

MOST = 12
"""Of how many elements an array is written down."""


def records() -> dict[str, tuple[list[Sample], list[ErrorSample]]]:
    """Return the calls that the tests make, and those that are refused, by operator."""
    found: dict[str, tuple[list[Sample], list[ErrorSample]]] = {}
    for case in load_cases(cases_folder()):
        samples, errors = found.setdefault(case.op, ([], []))
        samples += case.samples
        errors += case.errors
    return found


def example(op: Op, samples: list[Sample]) -> str:
    """Return a program of one call; "" where none can be written down."""
    for sample in samples[:8]:
        lines: list[str] = []
        names_of: dict[str, Any] = {"meta": meta}
        slots = zip((slot.name for slot in op.slots), sample.args, strict=False)
        try:
            parts = [written(value, name, lines) for name, value in slots]
            parts += [f"{k}={written(v, k, lines)}" for k, v in sample.kwargs.items()]
            call = f"meta.{op.name}({', '.join(parts)})"
            with meta.dialect.only("torch"):
                exec("\n".join(lines), names_of)
                result = eval(call, names_of)
        except (MetaError, SyntaxError, NameError, RuntimeError):  # the next one
            continue
        return "\n".join([*lines, f"{call}  # {described(result)}"])
    return ""


def written(value: Any, name: str, lines: list[str]) -> str:
    """Return an argument as code. The lines that make its arrays are added to ``lines``."""
    if isinstance(value, tuple | list) and any(isinstance(v, Spec) for v in value):
        inner = [written(v, f"{name}{i}", lines) for i, v in enumerate(value)]
        return f"({', '.join(inner)},)"
    if isinstance(value, Spec):
        lines.append(f"{name} = {array_text(value)}")
        return name
    if isinstance(value, float) and value - value != 0:
        return f"float({str(value)!r})"
    return repr(value)


def array_text(spec: Spec) -> str:
    """Return code that makes an array like the one that the tests draw."""
    drawn = spec.make("float32", torch.Generator().manual_seed(0))
    shape, dtype = tuple(drawn.shape), str(drawn.dtype).removeprefix("torch.")
    if not drawn.numel():
        return f"meta.zeros({shape}, dtype={dtype!r})"
    if dtype == "bool" and not spec.numbers:
        return f"meta.random.uniform({shape}) < 0.5"
    if (spec.numbers and drawn.numel() <= MOST) or drawn.is_complex():
        return f"meta.array({drawn.tolist()}, dtype={dtype!r})"
    low, high = (round(end.item(), 1) for end in drawn.double().aminmax())
    if not drawn.is_floating_point():
        return f"meta.random.randint({shape}, low={low:.0f}, high={high + 1:.0f}, dtype={dtype!r})"
    cast = "" if dtype == "float32" else f".astype({dtype!r})"
    return f"meta.random.uniform({shape}, low={low}, high={high}){cast}"


def described(result: Any) -> str:
    """Return the types of what a call returns."""
    if isinstance(result, meta.ndarray):
        return f"{result.dtype}{list(result.shape)}"
    if isinstance(result, tuple | list):
        return ", ".join(map(described, result))
    return repr(result)


def refusals(op: Op, errors: list[ErrorSample]) -> Iterator[str]:
    """Yield calls that are refused, each with the first lines of its error."""
    for error in errors[:3]:
        args, kwargs = error.make("float32")
        arrays = [meta.array(a) if isinstance(a, torch.Tensor) else a for a in args]
        try:
            op(*arrays, **kwargs)
        except MetaError as refusal:
            text = str(refusal).partition("\n  at:")[0]
            yield f"{type(refusal).__name__}: {text}"
