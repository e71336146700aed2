"""The cross entropy of a layer by Triton: the interpreter beside torch in float64, in one piece and
in several, and the kernels compiled for an H100.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base.registry import OPERATORS
from meta.dialect import prefer
from meta.ir import parse_type
from meta.testing import opcheck
from meta.testing.case import OpCase, Sample
from tests.op.linear_loss import CASES

triton = pytest.importorskip("triton")

from meta.dialect.triton import interpreted, linear_loss, triton_dialect  # noqa: E402
from tests.dialect.triton import kernels  # noqa: E402

SHARED = 227 << 10
FEW = {0, 2, 3}
"""Samples that an ordinary run takes: with a bias, with ignored labels, all ignored."""
SAMPLES = [
    pytest.param(case, one, id=f"{case.op}({one})"[:80], marks=() if i in FEW else pytest.mark.slow)
    for case in CASES
    for i, one in enumerate(case.samples)
]


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight classes at a time. How many are known when a kernel is made."""
    meta.dialect.core.preference.forget()
    monkeypatch.setattr(linear_loss, "ELEMENTS", 1)
    monkeypatch.setattr(linear_loss, "LANES", 8)
    yield
    meta.dialect.core.preference.forget()


@pytest.mark.parametrize(("case", "one"), SAMPLES)
def test_as_torch_in_float64(case: OpCase, one: Sample) -> None:
    with interpreted():
        for dtype in ("float16", "bfloat16"):
            if "triton" in opcheck.accepting(case, one, dtype):
                opcheck.check_dialect(case, one, dtype, "triton")
            else:  # no row, or no feature
                assert 0 in [t.numel() for t in one.make(dtype)[0]]


def _leaves(classes: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (5, 6), (classes, 6), (classes,)
    return tuple(torch.randn(s, generator=generator).to(dtype) for s in shapes)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_pieces_with_gradients(dtype: torch.dtype) -> None:
    leaves, labels = _leaves(19, dtype), torch.tensor([18, -100, 0, 8, 7])
    arrays = [meta.array(t) for t in leaves]
    for array in arrays:
        array.requires_grad = True
    with interpreted(), prefer("triton"):
        explained = str(meta.explain(
            meta.op.linear_cross_entropies, *arrays[:2], meta.array(labels), arrays[2]
        ))  # fmt: skip
        y = meta.linear_cross_entropy(*arrays[:2], meta.array(labels), linear_bias=arrays[2])
        y.backward()
    assert "->  triton" in explained
    wide = [t.double().requires_grad_() for t in leaves]
    expected = F.cross_entropy(F.linear(*wide), labels)
    expected.backward()
    rounding = {torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    for found, leaf in zip([y, *(a.grad for a in arrays)], [expected, *wide], strict=True):
        wanted = leaf if leaf is expected else leaf.grad
        torch.testing.assert_close(found.torch().double(), wanted, rtol=rounding, atol=rounding)


def test_infinite_scores() -> None:
    x, weight, bias = _leaves(300, torch.float16)
    labels = torch.tensor([18, 2, 0, 8, 299])
    bias[[2, 211]] = -torch.inf
    bias[128:256] = -torch.inf  # all of a tile
    for value in (0.0, torch.inf, torch.nan):
        bias[12] = value
        arrays = [meta.array(t) for t in (x, weight, labels, bias)]
        for array in (*arrays[:2], arrays[3]):
            array.requires_grad = True
        with interpreted(), prefer("triton"):
            losses, total = meta.op.linear_cross_entropies(*arrays)
            meta.sum(losses).backward()
        wide = [t.float().requires_grad_() for t in (x, weight, bias)]
        scores = F.linear(*wide)
        expected = F.cross_entropy(scores, labels, reduction="none")
        expected.sum().backward()
        torch.testing.assert_close(losses.torch(), expected.detach(), equal_nan=True)
        torch.testing.assert_close(total.torch(), scores.detach().logsumexp(1), equal_nan=True)
        for array, leaf in zip((*arrays[:2], arrays[3]), wide, strict=True):
            found, near = array.grad.torch().float(), {"rtol": 3e-3, "atol": 3e-3}
            torch.testing.assert_close(found, leaf.grad, equal_nan=True, **near)


def _units(name: str, dtype: str, bias: bool) -> Any:
    """Return what is compiled for a call on a GPU."""
    rows = "float32[4096]"
    layer = [f"{dtype}[4096, 768]", f"{dtype}[50257, 768]", "int64[4096]"]
    more = [f"{dtype}[50257]"] if bias else []
    if name.endswith("dxwb"):
        texts = [rows, rows, *layer, rows, *more]
    else:
        texts = [*layer, *more]
    call = kernels.call(OPERATORS[name], *map(parse_type, texts))
    env = triton_dialect.resolve(name).make(call)
    _, launches = env._deferred.source
    return [one.unit for one in launches]


NAMES = "linear_cross_entropies", "linear_cross_entropies_dxwb"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bias", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16",
        pytest.param("float16", marks=pytest.mark.slow),
    ],
)
def test_compiles(name: str, dtype: str, bias: bool) -> None:
    from meta.dialect.triton import build

    for unit in _units(name, dtype, bias):
        for variant in unit.variants:
            assert build.compiled(unit, variant).shared <= SHARED
