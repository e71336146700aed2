"""The examples run: an operator in one file, its CUDA kernel on the CPU too, one by tasks, and the
training loops of other packages.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from meta.testing import get_testable_devices
from tests.conftest import run_python

ROOT = Path(__file__).parents[1]

# In a process of its own: the example registers an operator and a backend.
PROGRAM = """
import runpy
import torch
from meta.dialect.cuda import cubin
from meta.testing.emulator.driver import emulated_driver, loaded
from meta.testing.emulator.handwritten import Function

names = runpy.run_path("examples/one_file_op.py", run_name="__main__")
cubin.function = lambda source, name, device, shared: loaded(Function(source, name))
for shape in ((3, 5), (), (0, 2), (70_001,)):
    x = torch.randn(shape)
    out = torch.full_like(x, float("nan"))
    with emulated_driver():
        names["squareplus_cuda"](x, 0.5, out)
    torch.testing.assert_close(out, names["CASE"].oracle(x, 0.5))
"""


@pytest.mark.long
def test_an_operator_in_one_file() -> None:
    lines = run_python("-c", PROGRAM).splitlines()
    chosen = [line.split()[1] for line in lines if line.startswith("->")]
    assert chosen == ["example" if d == "cuda" else "torch" for d in get_testable_devices()]


@pytest.mark.long
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


# In a process of its own: Lightning replaces `torch.compile`, and accelerate's state is global.
LOOPS = """
import importlib, json, sys, tempfile, warnings
from pathlib import Path
from torch._dynamo.utils import counters

sys.path.insert(0, "examples")
train, options = importlib.import_module(sys.argv[1]).train, json.loads(sys.argv[2])
warnings.simplefilter("error")
for package in ("lightning_fabric", "pytorch_lightning"):  # of their own code and advice
    warnings.filterwarnings("ignore", module=package)

def run(*configuration, **options):
    if "accelerate" in sys.modules:  # else the first Accelerator's settings are those of all
        from accelerate.state import AcceleratorState
        AcceleratorState._reset_state(reset_partial_state=True)
    return train(*configuration, **options)

with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
    losses = {"eager": run(None, Path(other)), "meta": run("meta", Path(folder))}
    graphs = dict(counters["stats"], **counters["frames"])
    losses["resumed"] = run("meta", Path(folder), resume=True)
    if options:
        losses["eager, half"] = run(None, Path(other), **options)
        losses["meta, half"] = run("meta", Path(folder), **options)
print(json.dumps([losses, graphs]))
"""


@pytest.mark.parametrize(
    ("name", "package", "options"),
    [
        ("trainer", "transformers", {}),
        ("lightning", "pytorch_lightning", {"precision": "bf16-mixed"}),
        ("accelerate", "accelerate", {"mixed_precision": "bf16"}),
    ],
)
@pytest.mark.long
def test_training_loops_of_other_packages(name: str, package: str, options: dict[str, str]) -> None:
    """Losses are those of eager PyTorch, also after a checkpoint and in mixed precision."""
    pytest.importorskip(package)
    printed = run_python("-c", LOOPS, f"train_with_{name}", json.dumps(options), tvm=True)
    losses, graphs = json.loads(printed.splitlines()[-1])
    eager = losses["eager"]
    epoch = len(eager) // 2
    assert sum(eager[epoch:]) < sum(eager[:epoch])
    assert losses["meta"] == pytest.approx(eager, rel=1e-5)
    assert losses["resumed"][-epoch:] == pytest.approx(eager[epoch:], rel=1e-5)
    # Training and evaluation, each for the first shapes and for all.
    assert 2 <= graphs["unique_graphs"] <= 4 and graphs["ok"] == graphs["total"] <= 4, graphs
    if options:
        assert losses["meta, half"] == pytest.approx(losses["eager, half"], rel=1e-2)
        assert losses["meta, half"] != losses["meta"]


def test_the_page_on_training_loops_shows_lines_of_the_examples() -> None:
    page = (ROOT / "docs" / "howto" / "training_loops.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```.*?examples/(\w+\.py)", page, re.DOTALL)
    assert len(blocks) == 3
    for block, example in blocks:
        lines = {line.strip() for line in (ROOT / "examples" / example).read_text().splitlines()}
        assert {line.strip() for line in block.splitlines()} <= lines, example
