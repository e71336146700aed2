"""What the ``torch`` and ``tvm`` dialects do not take on CUDA; no device is needed to know."""

from __future__ import annotations

from typing import Any

import pytest

import meta
from meta.base.device import Device
from meta.dialect.core import DIALECTS, Unsupported
from meta.ir import parse_type

CUDA = Device("cuda:0")


def make(dialect: str, name: str, *args: Any) -> Any:
    """Ask a dialect for the kernel of a call; strings are types."""
    base = getattr(meta.op, name)
    given = [parse_type(a) if isinstance(a, str) and "[" in a else a for a in args]
    bound = base.schema.bind(tuple(given), {}, lambda t: t)
    found = DIALECTS[dialect]
    found.load()
    return found.ops[name].make(base.call_values(bound, CUDA))


@pytest.mark.parametrize("name", ["hardsigmoid", "hardswish"])
def test_torch_rounds_a_sixth(name: str) -> None:
    with pytest.raises(Unsupported, match="ATen's CUDA kernel rounds 1/6 to float32"):
        make("torch", name, "float64[3]")
    assert make("torch", name, "float32[3]")


def test_arrays_that_no_device_has_room_for() -> None:
    """Nothing is compiled for them: the reference kernel is refused the memory."""
    for shape in ((1 << 50,), (1 << 20, (1 << 20) + 1)):
        with pytest.raises(Unsupported, match="more than 1,099,511,627,776 elements"):
            make("tvm", "zeros", shape, "float32", "cuda:0")
    assert make("torch", "zeros", (1 << 50,), "float32", "cuda:0")
