"""The examples run: an operator in one file, its CUDA kernel on the CPU too, and one by tasks."""

from __future__ import annotations

from pathlib import Path

from meta.testing import get_testable_devices
from tests.conftest import run_python

ROOT = Path(__file__).parents[1]

# In a process of its own: the example registers an operator and a backend.
PROGRAM = """
import runpy
import torch
from meta.dialect.cuda import cubin
from tests.emulator.driver import emulated_driver, loaded
from tests.emulator.handwritten import Function

names = runpy.run_path("examples/one_file_op.py", run_name="__main__")
cubin.function = lambda source, name, device, shared: loaded(Function(source, name))
for shape in ((3, 5), (), (0, 2), (70_001,)):
    x = torch.randn(shape)
    out = torch.full_like(x, float("nan"))
    with emulated_driver():
        names["squareplus_cuda"](x, 0.5, out)
    torch.testing.assert_close(out, names["CASE"].oracle(x, 0.5))
"""


def test_an_operator_in_one_file() -> None:
    lines = run_python("-c", PROGRAM).splitlines()
    chosen = [line.split()[1] for line in lines if line.startswith("->")]
    assert chosen == ["example" if d == "cuda" else "torch" for d in get_testable_devices()]


def test_attention_by_tasks() -> None:
    """The example compares results and gradients with torch's itself."""
    text = run_python("examples/attention_by_tasks.py")
    assert "heads_attention.init(heads (RO argument))" in text
    assert "<state of example.heads_attention on cpu>: 100 bytes" in text
    *_, kernels, cost = text.splitlines()
    assert "'example.heads_attention': 1" in kernels
    assert "'example.heads_attention_backward': 1" in kernels
    assert cost.startswith("example: forward") and "backward" in cost
    assert "'weights': 4608" in cost and "'state': 100" in cost
