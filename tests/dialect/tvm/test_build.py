"""Builds: what TVM refuses is reported with the name of the culprit."""

from __future__ import annotations

import pytest
from tvm import te, tirx

from meta.base import config
from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError, DeviceError, MetaError
from meta.dialect.tvm.build import build
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import cuda, for_device
from tests.dialect.tvm.functions import tensor


def test_the_culprit_of_a_batch_is_named():
    x = tensor(4)
    good = prim_func([x], [te.compute((4,), lambda i: x[i] + 1.0)], in_place=False)
    unknown = te.compute(
        (4,), lambda i: tirx.call_llvm_pure_intrin("float32", "llvm.cos", x[i], x[i])
    )
    bad = prim_func([x], [unknown], in_place=False)
    with pytest.raises(MetaError, match="'wrong'"):
        build({"right": good, "wrong": bad}, for_device(CPU))


def test_cpu_target_is_this_machine():
    target = for_device(CPU)
    assert target.kind.name == "llvm" and target.attrs["mcpu"]
    assert for_device(CPU) is target


def test_cpu_target_can_be_named():
    with config.override(META_CPU_TARGET='{"kind": "llvm", "mcpu": "x86-64"}'):
        assert for_device(CPU).attrs["mcpu"] == "x86-64"
    for text in ("no such target", '{"kind": "cuda"}', "{"):
        with config.override(META_CPU_TARGET=text), pytest.raises(ArgumentError):
            for_device(CPU)


def test_cuda_target():
    target = cuda("sm_90")
    assert target.attrs["max_threads_per_block"] == 1024 and target.host.kind.name == "llvm"


def test_absent_device():
    with pytest.raises(DeviceError):
        for_device(Device("cuda:99"))
