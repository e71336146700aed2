"""Builds: what TVM refuses is reported with the name of the culprit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tvm import te, tirx

from meta.base import config
from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError, DeviceError, MetaError
from meta.dialect.tvm import build as build_module
from meta.dialect.tvm.build import build
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import cuda, for_device, processors
from meta.runtime import gpu_properties
from meta.testing.emulator import generated
from tests.dialect.tvm.functions import tensor


def plus(number: float) -> tirx.PrimFunc:
    x = tensor(4)
    return prim_func([x], [te.compute((4,), lambda i: x[i] + number)])


def refused() -> tirx.PrimFunc:
    x = tensor(4)
    unknown = te.compute(
        (4,), lambda i: tirx.call_llvm_pure_intrin("float32", "llvm.cos", x[i], x[i])
    )
    return prim_func([x], [unknown])


@pytest.mark.parametrize("threads", [1, 3])
def test_the_culprit_of_a_batch_is_named(threads: int):
    functions = {f"right{i}": plus(float(i) + 0.5) for i in range(4)}
    functions |= {"wrong": refused()}
    with config.override(META_COMPILE_THREADS=threads), pytest.raises(MetaError, match="'wrong'"):
        build(functions, for_device(CPU))


def test_batches_on_several_threads_compute_what_they_should():
    functions = {f"plus{i}": plus(float(i) + 0.25) for i in range(7)}
    with config.override(META_COMPILE_THREADS=3):
        built = build(functions, for_device(CPU))
    x, y = torch.arange(4.0), torch.empty(4)
    for i in range(7):
        built[f"plus{i}"].run(x, y)
        assert torch.equal(y, x + i + 0.25)


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
    target = cuda()
    assert target.attrs["max_threads_per_block"] == 1024 and target.host.kind.name == "llvm"


def test_the_target_knows_how_many_multiprocessors_there_are():
    small = replace(gpu_properties.DEFAULT, processors=8)
    assert str(cuda(small)) != str(cuda()), "a kernel's key tells the chips apart"
    with cuda(small):
        assert processors() == 8
    assert processors() == gpu_properties.DEFAULT.processors

    def source(
        gpu: gpu_properties.GPUProperties,
    ) -> str:  # each thread has more elements where there are few of them
        x = tensor(1 << 18)
        twice = te.compute(x.shape, lambda i: x[i] * 2)
        return generated.sources(prim_func([x], [twice]), cuda(gpu))

    assert source(small) != source(gpu_properties.DEFAULT)


def test_no_device_to_compile_for():
    assert (
        gpu_properties.target_of(CPU)
        == gpu_properties.target_of(Device("cuda:99"))
        == gpu_properties.DEFAULT
    )


def test_absent_device():
    with pytest.raises(DeviceError):
        for_device(Device("cuda:99"))


def test_the_key_of_a_kernel_knows_all_rules() -> None:
    files, folder = set(build_module.rule_files()), Path(build_module.__file__).parent
    assert set((folder / "schedule_cuda").rglob("*.py")) < files
    assert folder / "vector_math.py" in files
    assert "prologue.cuh" in {f.name for f in files}, "the compiler puts it before sources"
    assert folder / "pool.py" not in files, "what makes PrimFuncs; they are in the key themselves"
    families = {f.stem for f in folder.glob("*.py")} - {f.stem for f in files}
    reads = re.compile(rf"meta\.dialect\.tvm(\.| import .*\b)({'|'.join(families)})\b(?!\.)")
    found = [f.name for f in files if f.parent == folder and reads.search(f.read_text("utf-8"))]
    assert not found, f"a rule that depends on an operator family: {found}"
