"""What an operator of an installed package has by its registrations alone: nothing names it."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from tests.conftest import run_python

PACKAGE = """
    import torch
    import meta
    from meta.dialect import HANDWRITTEN, Dialect
    from meta.frontend.aten.registry import aten
    from meta.grad.core import gradient
    from meta.op.core import Tensor, op
    from meta.op.core.check import require_float
    from meta.testing import F, I, OpCase, error, sample

    @op(elementwise=True)
    def acme_sigmoid(x: Tensor) -> Tensor:
        \"\"\"1 / (1 + exp(-x)). Raises TypeInferError for what is no floating point.\"\"\"
        require_float(x, "x")
        return x

    @gradient(acme_sigmoid)
    def rule(y, dy):
        return dy * y * (1.0 - y)

    acme, CALLS = Dialect("acme", devices=("cpu",), plevel=HANDWRITTEN), [None]

    @acme.kernel(acme_sigmoid, strided=False)
    def kernel(x):
        CALLS.append(tuple(x.shape))
        return torch.sigmoid(x)

    del aten._entries["sigmoid"]  # our own converter, whose operator this one is instead of
    aten.same("sigmoid", acme_sigmoid)

    CASES = [
        OpCase(
            "acme_sigmoid",
            samples=[sample(F(3, 5)), sample(F())],
            oracle=torch.sigmoid,
            dialects=("acme",),
            errors=[error(I(3, low=0, high=2), match="x must be floating point")],
        )
    ]
    """
RECORD = {
    "METADATA": "Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n",
    "entry_points.txt": "[meta.dialects]\nacme = acme_ops:acme\n"
    "[meta.cases]\nacme = acme_ops:CASES\n",
}
FUZZED = """
    from tools.fuzz_models.__main__ import main
    from tools.fuzz_models.draw import Style, generate
    from tools.fuzz_models.program import all_steps
    from tools.fuzz_models.records import record_of

    record = record_of("acme_sigmoid")
    assert record.smooth and not record.moves and not record.degree
    program = generate(0, Style(2, 3, smooth=True, control=False, only=("acme_sigmoid",)))
    assert "acme_sigmoid" in {step.op for step in all_steps(program.steps)}
    main(["--face=models", "--op=acme_sigmoid", "--cases=6", "--quick", "--json"])
    """
DERIVED = """
    import torch
    from acme_ops import CALLS, CASES, acme_sigmoid
    from meta.interop.torch import enable, overloads
    from meta.ir import TensorType
    from meta.testing import check_case
    from tools.fuzz_models.torch_compile.overloads import calls
    from tools.torch_samples.functions import run

    check_case(CASES[0])
    (axes,) = acme_sigmoid.axes_of({"x": TensorType((2, 3), "float32")})
    assert len(axes.free()) == 2  # along which ranks may cut, and examples of a batch lie
    assert "torch.ops.aten.sigmoid.default({0})" in calls()  # of random torch.compile programs
    assert overloads.overloads_of(acme_sigmoid) == ("sigmoid",)
    x = torch.linspace(-2, 2, 7)
    CALLS.clear()
    with enable(["sigmoid"], device="cpu"):
        y = x.sigmoid()
    assert CALLS == [(7,)]
    torch.testing.assert_close(y, 1 / (1 + (-x).exp()))
    found = run("sigmoid", (torch.float32,))  # OpInfo's samples
    assert found.passed and found.ran > 1 and found.gradients
    print("ok")
    """


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    """A folder with an installed package."""
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    for name, text in RECORD.items():
        (info / name).write_text(text, "utf-8")
    (tmp_path / "acme_ops.py").write_text(dedent(PACKAGE), "utf-8")
    return tmp_path


def run(code: str, site: Path) -> str:
    program = f"import sys; sys.path.insert(0, {str(site)!r})\n{dedent(code)}"
    return run_python("-c", program, tvm=True)


@pytest.mark.long
def test_it_is_fuzzed(acme: Path) -> None:
    """In programs of every executor, also differentiated."""
    summary = json.loads(run(FUZZED, acme))
    assert summary["cases"] >= 6 and not summary["failures"]


def test_it_is_checked_sharded_enabled_and_compared_with_torch(acme: Path) -> None:
    assert run(DERIVED, acme) == "ok\n"


def test_what_is_no_list_of_records_is_refused(acme: Path) -> None:
    text = RECORD["entry_points.txt"].replace("CASES", "CALLS")
    (acme / "acme-1.0.dist-info" / "entry_points.txt").write_text(text, "utf-8")
    with pytest.raises(AssertionError, match=r"no list of records[^$]*found: *acme_ops:CALLS"):
        run("from meta.testing.records import announced_cases; announced_cases()", acme)
