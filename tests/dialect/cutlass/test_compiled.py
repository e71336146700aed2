"""Kernels compiled by the CuTe DSL, on a machine without a GPU: machine code, its library, and what
its function takes. Skipped where the extra ``cutlass`` is not installed.

A process of its own compiles: the DSL takes seconds to import and warns of what it imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meta.dialect.cutlass import missing
from meta.dialect.cutlass.kernel import FORMS, TILINGS, Kernel, tilings
from meta.dialect.cutlass.launch import SWIZZLE
from meta.dialect.cutlass.machine import symbol

absent = missing()
pytestmark = pytest.mark.skipif(absent is not None, reason=f"{absent}")
FEW = ["plain", "gated", "gated_dx", "rows_columns", "grouped"]
COMPILE = """
import json, sys
from pathlib import Path
from meta.dialect.cutlass import machine
from meta.dialect.cutlass.kernel import Kernel, Tiling
for file, kernel, tiling in json.load(sys.stdin):
    made = Kernel(**{**kernel, "vectors": tuple(kernel["vectors"]), "tiling": Tiling(**tiling)})
    Path(file).write_bytes(machine.compiled(made))
"""
CALL = """
import sys
from pathlib import Path
import torch
from meta.dialect.cutlass import machine
run = machine.loaded(Path(sys.argv[1]).read_bytes(), sys.argv[2])
assert not {"cutlass", "quack", "tvm"} & set(sys.modules)
x = torch.zeros(8, 16, dtype=torch.bfloat16)
scheduler = (66, None, int(sys.argv[3]), None, None, None)
out = torch.zeros(8, 8, dtype=torch.bfloat16)
for given in ((x, x, out, None, (None, None), scheduler, None, None, None), (x, x, out)):
    try:
        run(*given)
    except (ValueError, TypeError) as error:
        print(error)
"""


def kernel_of(form: str, arch: str = "sm_90a", place: int = 0) -> Kernel:
    """Return a kernel of a form; "grouped": products in groups."""
    name = "plain" if form == "grouped" else form
    of = FORMS[name]
    activation = "silu" if "act" in name or "gated" in name else "identity"
    activation = "relu" if name == "gated_result_dx" else activation
    kinds = [kind for _, kind in of.operands if kind in ("row", "column")]
    vectors = tuple("float32" if kind == "column" else "bfloat16" for kind in kinds)
    capability = 10 if arch == "sm_100a" else 9
    tiling = tilings(capability, name, 4096, 4096)[place]
    grouped = form == "grouped"
    return Kernel(arch, "bfloat16", False, True, name, activation, vectors, tiling, grouped)


def described(kernel: Kernel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a kernel's fields, and its tiling's."""
    fields = {name: getattr(kernel, name) for name in Kernel.__slots__ if name != "tiling"}
    tiling = kernel.tiling
    return fields, {name: getattr(tiling, name) for name in tiling.__slots__}


def compiled(kernels: list[Kernel], folder: Path) -> list[Path]:
    """Return the libraries of kernels."""
    files = [folder / f"{i}.so" for i in range(len(kernels))]
    wanted = [(str(file), *described(k)) for file, k in zip(files, kernels, strict=True)]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], input=json.dumps(wanted), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return files


@pytest.mark.long
def test_epilogues_become_machine_code(tmp_path: Path) -> None:
    kernels = [kernel_of(form) for form in FEW]
    files = compiled(kernels, tmp_path)
    # A library for the host has one for the GPU in it.
    assert all(f.read_bytes().count(b"\x7fELF") == 2 for f in files)
    called = [sys.executable, "-c", CALL, str(files[0]), symbol(kernels[0]), str(SWIZZLE)]
    done = subprocess.run(called, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Arguments are looked at one after the other; the first tensor is not on a GPU.
    first, second = (text for text in done.stdout.split("\n") if "__call__" in text)
    assert "Mismatched Tensor on argument #0" in first and "cuda" in done.stdout.lower()
    takes = "mA: Tensor([n0, n1], bfloat16), mB: Tensor([n2, n1], bfloat16)"
    assert takes in first and "epilogue_args: Tuple[None, None]" in first
    assert "Expects 9 parameters" in second


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_every_form_and_tiling_compiles(arch: str, tmp_path: Path) -> None:
    count = len(TILINGS[10 if arch == "sm_100a" else 9])
    kernels = [kernel_of(form, arch) for form in (*FORMS, "grouped")]
    for place in range(1, count):
        kernels += [kernel_of(form, arch, place) for form in ("plain", "gated", "times_saved")]
    assert all(f.read_bytes().count(b"\x7fELF") == 2 for f in compiled(kernels, tmp_path))


@pytest.mark.slow
def test_formulas_of_activations_are_those_of_torch(tmp_path: Path) -> None:
    """On the CPU, with what the DSL computes on numbers in registers replaced by torch."""
    done = subprocess.run([sys.executable, "-c", FORMULAS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FORMULAS = """
import torch
import torch.nn.functional as F
from types import SimpleNamespace
from meta.dialect.cutlass.source import epilogues as math

math.sigmoid = torch.sigmoid
math.cute = SimpleNamespace(math=SimpleNamespace(erf=torch.erf, exp2=torch.exp2))
x = torch.linspace(-9, 9, 1001, dtype=torch.float64).requires_grad_()
dy = torch.linspace(1, 2, 1001, dtype=torch.float64)
for name, known in (
    ("silu", F.silu), ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))
):
    y = known(x)
    [dx] = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(math.ACTIVATIONS[name](x), y, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(math.GRADIENTS[name](x, dy), dx, rtol=1e-10, atol=1e-12)
"""
