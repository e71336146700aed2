"""The gradient of an embedding's table in CUDA, run as C++ on the CPU, beside torch in float64."""

from __future__ import annotations

import pytest
import torch

from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported, only
from meta.dialect.cuda import cuda, embedding
from meta.ir import TensorType, parse
from meta.passes import fuse_dialect, infer_type

CUDA = Device("cuda:0")


def run(
    rows: int, count: int, width: int, often: float, dtype: str, addend: str | None = None
) -> None:
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(-1, rows + 1, (count,), generator=generator)  # some are outside
    indices[torch.rand(count, generator=generator) < often] = 1
    dy = torch.randn(count, width, generator=generator).to(TO_TORCH[dtype])
    expected = torch.zeros(rows, width, dtype=torch.float64)
    expected.index_add_(0, indices.clamp(0, rows - 1), dy.double())
    others = []
    if addend:
        others = [torch.randn(rows, width, generator=generator).to(TO_TORCH[addend])]
        expected += others[0].double()
    types = [TensorType(s, d) for s, d in (((count, width), dtype), ((count,), "int64"))]
    out = torch.full((rows, width), float("nan"), dtype=TO_TORCH[dtype])
    made = embedding.gradient(*types, TensorType((rows, width), dtype), 0, addend)
    made.run(dy, indices, *others, out)
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("rows", "count", "width", "often", "dtype", "addend"),
    [
        (70, 1500, 40, 0.0, "float16", None),  # two rows of a thread block, two chunks
        (70, 300, 264, 0.6, "float32", "bfloat16"),  # one row is named by most
        (2, 300, 70, 0.0, "float32", None),  # few rows: all warps share each
        (3, 0, 8, 0.0, "float16", "float32"),
        pytest.param(40, 700, 13, 0.9, "bfloat16", "bfloat16", marks=pytest.mark.slow),
        # More indices than a thread block notes.
        pytest.param(2, 20000, 6, 0.0, "float32", None, marks=pytest.mark.slow),
        pytest.param(70, 9000, 8, 0.97, "float32", "float32", marks=pytest.mark.slow),
    ],
)
def test_gradient(
    rows: int,
    count: int,
    width: int,
    often: float,
    dtype: str,
    addend: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedding, "BLOCKS", 4)
    run(rows, count, width, often, dtype, addend)


def test_an_addend_of_integers_is_refused() -> None:
    table, ids = TensorType((8, 8), "float32"), TensorType((8,), "int64")
    with pytest.raises(Unsupported, match="int8 beside it"):
        embedding.gradient(table, ids, table, 0, "int8")


HEAD = "%d: float32[4, 16], %i: int64[4], %w: {0}"
GRADIENT = "%g = embedding_dx(%d, %i, (30, 16))\n"
FIRST, LATER = (f"%s = strided_slice(%w, {at})\n" for at in ("(0,), (30,)", "(2,), (32,)"))
CAST, ADD = '%h = astype(%s, "float32")\n', "%y = add(%h, %g)"


@pytest.mark.parametrize(
    ("wide", "body", "fuses"),
    [
        ("float16[32, 16]", FIRST + CAST + ADD, True),
        ("float32[32, 16]", "%s = strided_slice(%w, (0, 0), (30, 16))\n%y = add(%g, %s)", True),
        ("float16[30, 16]", CAST.replace("%s", "%w") + ADD, True),
        ("float32[30, 16]", "%y = add(%w, %g)", True),
        ("float16[32, 16]", LATER + CAST + ADD, True),
        ("float32[30, 1]", "%y = add(%w, %g)", False),
    ],
)
def test_another_gradient_is_added(
    wide: str, body: str, fuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    text = f"func @main({HEAD.format(wide)}) {{\n{GRADIENT}{body}\nreturn %y\n}}"
    with only("cuda"):
        found = fuse_dialect(infer_type(parse(text)), device=CUDA)
    made = [f.attrs["kernel"] for f in found.functions.values() if f.attrs]
    assert made == (["embedding_dx_add"] if fuses else [])
    # Rows that are not the first ones are sliced before.
    assert ("strided_slice" in str(found.main)) == ("(2,)" in body)
