"""Kernels of the cutlass dialect: who is declined and why, configurations, how a launch gets its
arguments, products alone and in groups, and what is kept of a kernel. Kernels are emulated.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect import cutlass as package
from meta.dialect import only, prefer
from meta.dialect.core import Unsupported
from meta.dialect.core.openv import config_of, config_text
from meta.dialect.cutlass import cutlass, machine
from meta.dialect.cutlass.kernel import FORMS, TILINGS, arch_of, tilings
from meta.dialect.cutlass.launch import Plan
from meta.dialect.cutlass.product import prepared, product
from meta.ir import TensorType, parse
from meta.passes import explain_fusion, infer_type

CPU = Device("cpu")


def half(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).bfloat16()


def of(*shape: int, dtype: str = "bfloat16") -> TensorType:
    return TensorType(shape, dtype)


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({}, "quack-kernels is not installed: pip install 'meta-operators[cutlass]'"),
        ({"quack-kernels": "0.7.1"}, "quack-kernels 0.7.1 is installed, not 0.6.*: pip install"),
        ({"quack-kernels": "0.6.5"}, "nvidia-cutlass-dsl is not installed: pip install"),
        ({"quack-kernels": "0.6.5", "nvidia-cutlass-dsl": "4.8.1"}, ""),
    ],
)
def test_without_the_packages_the_dialect_says_what_to_install(
    versions: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(package, "version", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = package.probe()
    assert (found or "").startswith(reason) and bool(found) == bool(reason)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert package.probe() == "no CUDA device"


def test_only_some_devices_have_kernels() -> None:
    assert arch_of((9, 0)) == "sm_90a" and arch_of((10, 3)) == "sm_103a"
    for capability in ((8, 9), (12, 0)):
        with pytest.raises(Unsupported, match=r"made for compute capability 9\.0, 10\.0 and 10\.3"):
            arch_of(capability)


@pytest.mark.parametrize(
    ("x1", "x2", "reason"),
    [
        (of(8, 16, dtype="float32"), of(16, 8, dtype="float32"), "made for float16 and bfloat16"),
        (of(8, 12), of(12, 8), "rows of 12 elements do not begin at multiples of 16 bytes"),
        (of(8, 16), of(16, 4), "rows of 4 elements"),
        (of(0, 16), of(16, 8), "there is nothing to multiply"),
    ],
)
def test_products_that_are_declined(x1: TensorType, x2: TensorType, reason: str) -> None:
    with pytest.raises(Unsupported, match=re.escape(reason)):
        product(x1, x2, False, False)


def test_operands_that_are_declined() -> None:
    square = product(of(7, 16), of(16, 8), False, False)

    def make(form: str, **given: TensorType) -> None:
        tensors = {"x1": of(7, 16), "x2": of(16, 8), **given, "out": of(7, 8)}
        prepared(square, form, "identity", tensors, CPU)

    for vector, reason in (
        (of(7), "has not a number for each column"),
        (of(8, dtype="int32"), "made for vectors of half or float32"),
    ):
        with pytest.raises(Unsupported, match=reason):
            make("columns", b=vector)
    with pytest.raises(Unsupported, match="are read two at a time"):
        make("rows", r=of(7, 1))
    make("rows", r=of(7, 1, dtype="float32"))
    for tile in (of(8), of(7, 8, dtype="float32"), of(8, 7)):
        with pytest.raises(Unsupported, match=r"is not like the result bfloat16\[7, 8\]"):
            make("add", c=tile)


def test_a_kernel_that_was_not_measured_takes_nothing_from_others(emulated: Any) -> None:
    x, w = meta.array(half(8, 16)), meta.array(half(8, 16, seed=1))
    records = meta.explain(op.dense, x, w).records()
    assert records[-1]["dialect"] == "cutlass" and records[-1]["accepts"]
    assert [r["dialect"] for r in records if r["chosen"]] not in ([], ["cutlass"])
    text = """func @main(%x: bfloat16[8, 16], %w: bfloat16[8, 16]) {
      %y = dense(%x, %w)
      %z = silu(%y)
      return %z
    }"""
    with only("cutlass", "torch"):
        found = explain_fusion(infer_type(parse(text)), device=CPU)
        kernels = meta.vm.compile(infer_type(parse(text))).kernels()
    assert "dense has the kernel" in found[found.index("dense_silu:") :][:200]
    assert kernels == {"torch.dense": 1, "torch.silu": 1}


FORMS_ALONE = {
    "matmul": (False, False), "matmul_nt": (False, True), "matmul_tn": (True, False),
    "matmul_tt": (True, True), "dense": (False, True),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS_ALONE)
def test_products_alone(name: str, emulated: Any) -> None:
    t1, t2 = FORMS_ALONE[name]
    x, w = half(24, 16), half(16, 40, seed=1)
    given = (x.t().contiguous() if t1 else x), (w.t().contiguous() if t2 else w)
    with only("cutlass"):
        y = getattr(op, name)(*map(meta.array, given))
    torch.testing.assert_close(y.torch().double(), x.double() @ w.double(), rtol=8e-3, atol=2e-2)
    assert emulated[0].calls and (emulated[0].kernel.t1, emulated[0].kernel.t2) == (t1, t2)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("ends", [[3, 3, 12], [0, 5, 9]])
def test_groups(ends: list[int], dtype: str, emulated: Any) -> None:
    """One of no rows, and rows that belong to no group."""
    x, w, offs = half(12, 16), half(3, 16, 8, seed=1), torch.tensor(ends)
    expected = torch.zeros(12, 8, dtype=torch.float64)
    for i, end in enumerate(ends):
        rows = slice(ends[i - 1] if i else 0, end)
        expected[rows] = x[rows].double() @ w[i].double()
    groups = meta.array(offs.to(TO_TORCH[dtype]))
    for name, weights in (("grouped_matmul", w), ("grouped_matmul_nt", w.mT.contiguous())):
        with only("cutlass"):
            y = getattr(op, name)(meta.array(x), meta.array(weights), groups)
        torch.testing.assert_close(y.torch().double(), expected, rtol=8e-3, atol=2e-2)
    with only("cutlass"), pytest.raises(meta.base.errors.DispatchError, match="groups of rows"):
        op.grouped_matmul(meta.array(half(3, 16, 16)), meta.array(half(16, 16)), groups)


def test_configurations_are_tilings(emulated: Any) -> None:
    x, w = meta.array(half(8, 16)), meta.array(half(8, 16, seed=1))
    expected = op.dense(x, w).torch()
    with only("cutlass"):
        assert meta.explain(op.dense, x, w).records()[-1]["configs"] == 5
    env = cutlass.ops["dense"].make(op.dense.call_values((of(8, 16), of(8, 16)), CPU))
    configs = env.configs.listed()
    assert len(set(configs)) == 5 and all(config_of(config_text(c)) == c for c in configs)
    tiles = set()
    for config in configs:
        out = torch.empty(8, 8, dtype=torch.bfloat16)
        env.configured(config).run(x.torch(), w.torch(), out)
        torch.testing.assert_close(out, expected, rtol=8e-3, atol=2e-2)
        tiles.add(emulated[-1].kernel.tiling)
    assert {t.config for t in tiles} == set(configs)
    with pytest.raises(Unsupported, match="no kernel is divided as"):
        env.configured((("tile", "1x1"),))


@pytest.mark.parametrize("capability", TILINGS)
@pytest.mark.parametrize("form", FORMS)
def test_each_form_has_tilings(form: str, capability: int) -> None:
    large = tilings(capability, form, 8192, 8192)
    assert len(large) > 2 and len({t.config for t in large}) == len(large)
    small = tilings(capability, form, 128, 128)
    assert small[0].rows * small[0].columns * small[0].cluster <= 2 * 128 * 128


def test_tensors_at_other_addresses_are_copied(emulated: Any) -> None:
    def apart(t: torch.Tensor) -> torch.Tensor:
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)

    x, w, c = half(8, 16), half(8, 16, seed=1), half(8, 8, seed=2)
    problem = product(of(8, 16), of(8, 16), False, True)
    types = {"x1": of(8, 16), "x2": of(8, 16), "c": of(8, 8), "out": of(8, 8), "kept": of(8, 8)}
    env = prepared(problem, "times_saved", "identity", types, CPU)
    expected = x.double() @ w.double().t()
    for given in ((x, w, c), tuple(map(apart, (x, w, c)))):
        for place in (torch.empty_like, lambda t: apart(torch.empty_like(t))):
            out, kept = place(c), place(c)
            env.run(*given, out, kept)
            torch.testing.assert_close(kept.double(), expected, rtol=8e-3, atol=2e-2)
            torch.testing.assert_close(out.double(), expected * c.double(), rtol=8e-3, atol=3e-2)


TEXT = """func @main(%x: bfloat16[2, 4, 16], %w: bfloat16[16, 16]) {
  %0 = reshape(%x, (8, 16))
  %1 = dense(%0, %w)
  %2 = reshape(%1, (2, 4, 16))
  %3 = add(%x, %2)
  %4 = reshape(%3, (8, 16))
  %5 = dense(%4, %w)
  %6 = silu(%5)
  return %6
}"""


def test_programs_are_saved_with_their_kernels(
    emulated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel lies in the folder, and is loaded without its compiler."""
    monkeypatch.setattr(machine, "compiled", lambda kernel: repr(kernel).encode())
    with only("cutlass", "torch"), prefer("cutlass"):
        run = meta.vm.compile(infer_type(parse(TEXT)))
    assert run.kernels() == {"cutlass.dense_add": 1, "cutlass.dense_silu": 1}
    x, w = meta.array(half(2, 4, 16)), meta.array(half(16, 16, seed=1))
    expected = run(x, w).torch()
    run.save(tmp_path / "saved")
    before = len(emulated)
    again = meta.vm.load(tmp_path / "saved")
    assert torch.equal(again(x, w).torch(), expected) and len(emulated) > before
    for file in (tmp_path / "saved" / "kernels").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(meta.base.errors.FormatError):
        meta.vm.load(tmp_path / "saved")


def test_a_kernel_that_takes_one_array_twice_is_made_anew(emulated: Any, tmp_path: Path) -> None:
    """How its arguments are ordered is not in its file."""
    text = """func @main(%x: bfloat16[16, 16]) {
      %0 = dense(%x, %x)
      %1 = add(%x, %0)
      return %1
    }"""
    with only("cutlass", "torch"), prefer("cutlass"):
        run = meta.vm.compile(infer_type(parse(text)))
    x = meta.array(half(16, 16))
    run.save(tmp_path / "saved")
    assert not list((tmp_path / "saved" / "kernels").iterdir())
    assert torch.equal(meta.vm.load(tmp_path / "saved")(x).torch(), run(x).torch())


def test_damaged_records_are_refused() -> None:
    plan = Plan("add", ("x1", "x2", "c", "out"), ((8, 16), (8, 16), (8, 8), (8, 8)), 66)
    record = plan.record()
    assert Plan.read(record) == plan
    for wrong in (
        {},
        {**record, "form": ["add"]},
        {**record, "form": "other"},
        {**record, "roles": ["x1", "x2", "out"]},
        {**record, "clusters": "66"},
        {**record, "ends": "int32"},
        {**record, "shapes": [[8, "16"], [8, 16], [8, 8], [8, 8]]},
    ):
        with pytest.raises(ValueError, match="record of a launch is damaged"):
            Plan.read(wrong)
    with pytest.raises(ValueError, match="fields of a kernel's record"):
        machine.restore(machine.Artifact(Path("x"), {}))
