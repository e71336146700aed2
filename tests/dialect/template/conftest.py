"""Operators with source text, of every form that slots have, and what removes them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meta.base import config
from meta.base.registry import OPERATORS
from meta.dialect.template import template
from meta.op.core import InOut, Scalar, Tensor, op
from meta.testing.emulator import compiler
from meta.testing.emulator.templates import emulated

INDEX = "{{ index }} i = ({{ index }})blockIdx.x * blockDim.x + threadIdx.x;\n"
LAUNCH = (
    "int64_t n = {{ outputs[0].size }};\nKERNEL<<<ceil_div(n, 128), 128>>>({{ arguments }}, n);"
)


def body(name: str, line: str) -> str:
    """Return a kernel that has a thread for each element of a result."""
    return (
        f"__global__ void {name}({{{{ parameters }}}}, {{{{ index }}}} n) {{\n  {INDEX}"
        f"  if (i < n) {{ {line} }}\n}}\n"
    )


@pytest.fixture
def new_op() -> Iterator[Callable[..., Any]]:
    """Registers operators and their source texts; removes both."""
    made = []

    def register(function: Callable[..., Any], text: str | None = None, **options: Any) -> Any:
        made.append(op(function))
        if text is not None:
            launch = options.pop("launch", LAUNCH.replace("KERNEL", function.__name__))
            template.add(made[-1], text, launch, **options)
        return made[-1]

    yield register
    for one in made:
        if one.name in template.ops:
            template.remove(one)
        OPERATORS.remove(one.name)


@pytest.fixture
def on_cpu(tmp_path: Path) -> Iterator[None]:
    """Source text runs on the CPU; nothing is left in caches."""
    compiler.runtime()  # what the emulator compiles is kept in the ordinary place
    with config.override(META_CACHE_DIR=str(tmp_path)), emulated():
        yield


def add_one(x: Tensor) -> Tensor:
    """x + 1"""
    return x


ADD_ONE = body("add_one", "out[i] = {{ out.down }}({{ x.up }}(x[i]) + 1);")


def axpy(x: Tensor, y: Tensor, alpha: Scalar = 1.0) -> Tensor:
    """alpha * x + y"""
    return x


AXPY = body("axpy", "out[i] = {{ out.down }}(alpha * {{ x.up }}(x[i]) + {{ y.up }}(y[i]));")


def sin_and_cos(x: Tensor) -> tuple[Tensor, Tensor]:
    """Both."""
    return x, x


SIN_AND_COS = body(
    "sin_and_cos",
    "{{ x.wide }} v = {{ x.up }}(x[i]);\n"
    "{% for one, name in ((out[0], 'sin'), (out[1], 'cos')) %}\n"
    "{{ one }}[i] = {{ one.down }}({{ target.function_of(name, 'float32') }}(v));\n"
    "{% endfor %}",
)


def clipped(x: Tensor, low: float = 0.0, closed: bool = True, bias: Tensor | None = None) -> Tensor:
    """max(x + bias, low), or 0 where ``closed`` is False"""
    return x


CLIPPED = body(
    "clipped",
    "{{ x.wide }} v = {{ x.up }}(x[i]);\n"
    "{% if bias %}\nv += {{ bias.up }}({{ bias }}[i]);\n{% endif %}\n"
    "out[i] = {{ out.down }}(v > ({{ x.wide }}){{ low }} ? v : "
    "{{ closed }} ? ({{ x.wide }}){{ low }} : 0);",
)


def sum_of_all(xs: tuple[Tensor, ...]) -> Tensor:
    """The sum of several tensors"""
    return xs[0]


SUM_OF_ALL = body(
    "sum_of_all",
    "{{ out.wide }} v = 0;\n"
    "{% for x in xs %}\nv += {{ x.up }}({{ x }}[i]);\n{% endfor %}\n"
    "out[i] = {{ out.down }}(v);",
)


def scale_(x: InOut, by: Scalar) -> Tensor:
    """x *= by; returns what it was"""
    return x


SCALE = body("scale_", "out[i] = x[i]; x[i] = {{ x.down }}({{ x.up }}(x[i]) * by);")
