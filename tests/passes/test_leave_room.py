"""Which kernels run beside collectives, by the clock of `leave_room`; that products leave room then
is tested on a device (tests/cuda).
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from meta.base.device import CPU, Device
from meta.ir import Module, parse
from meta.passes import leave_room, links, peaks, predict
from meta.passes.distributed.leave_room import _beside
from tests.passes.test_schedule_collectives import SUM

CUDA = Device("cuda")
PRODUCT = "matmul(%x, %x)"
"""137 GFLOP: 200 microseconds at 700 TFLOP/s."""


def program(*kernels: str) -> Module:
    """Return a program of named values of one type and collectives."""
    type_ = "bfloat16[4096, 4096]"
    bindings = "\n".join(
        f"  %{k.partition(' = ')[0]}: {'()' if 'collective' in k or '_start' in k else type_} = "
        f"{k.partition(' = ')[2]}"
        for k in kernels
    )
    return parse(f"func @main(%x: {type_}) -> {type_} {{\n{bindings}\n  return %x\n}}")


def beside(module: Module, slower: float = 1.0) -> list[str]:
    """Return the products that begin while an exchange goes on, by links so many times slower."""
    nvlink = replace(links.NVLINK, bandwidth=links.NVLINK.bandwidth / slower)
    with mock.patch.object(links, "NVLINK", nvlink):
        return [var.name for var in _beside(module, CUDA) if var.name in "bcdefg"]


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "peaks_of", lambda device: peaks.CHIPS[9, 0])


EXCHANGE = f"s = multi_tensor_all_reduce_start((%a,), {SUM})"
"""Of 32 MiB: about 120 microseconds by NVLink, 220 with kernels beside it."""
WAIT = 'w = collective_wait((%a,), over="dp", size=2)'


def test_as_many_as_fit_beside_an_exchange() -> None:
    kernels = [f"{name} = {PRODUCT}" for name in "bcdefg"]
    module = program(f"a = {PRODUCT}", EXCHANGE, *kernels, WAIT)
    assert beside(module) == ["b"]
    assert beside(module, slower=5.0) == ["b", "c", "d"]


def test_a_wait_ends_it() -> None:
    module = program(f"a = {PRODUCT}", EXCHANGE, WAIT, f"b = {PRODUCT}", f"c = {PRODUCT}")
    assert beside(module, slower=10.0) == []


def test_exchanges_follow_one_another() -> None:
    module = program(
        f"a = {PRODUCT}",
        EXCHANGE,
        EXCHANGE.replace("s =", "t ="),
        *(f"{n} = {PRODUCT}" for n in "bcd"),
    )
    assert beside(module) == ["b", "c"]


def test_nothing_changes_without_a_device_or_a_collective() -> None:
    module = program(f"a = {PRODUCT}", EXCHANGE, f"b = {PRODUCT}", WAIT)
    assert leave_room(module, device=CPU) is module
    alone = program(f"a = {PRODUCT}")
    assert leave_room(alone, device=CUDA) is alone
