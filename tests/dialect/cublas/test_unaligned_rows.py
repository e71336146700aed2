"""Products of padded weights, which nobody pads: without the columns that were added, where nothing
is in memory as a whole but what is wanted, and with them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU
from meta.dialect.core import Unsupported
from meta.dialect.cublas import cublas, epilogues
from meta.dialect.cublas.product import ROWS
from meta.ir import Module, parse
from meta.passes import align_products, canonicalize, carry_padding, explain_fusion
from meta.testing import check
from tests.dialect.cublas.addresses import odd, run

pytestmark = pytest.mark.usefixtures("emulated")


@pytest.fixture
def few_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogues, "LEAST_COLUMNS", 64)


def tensors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def scores(x: Any, w: Any, b: Any) -> Any:
    return op.reshape(op.bias_add(op.dense(x, w), b, 1), (2, -1, w.shape[0]))


def scores_of_rows(x: Any, w: Any, b: Any) -> Any:
    return op.bias_add(op.reshape(op.dense(x, w), (2, -1, w.shape[0])), b, 2)


def scores_alone(x: Any, w: Any, b: Any) -> Any:
    return op.reshape(op.dense(x, w), (2, -1, w.shape[0]))


def padded(model: Any, *arrays: Any) -> Module:
    module = canonicalize(meta.model.trace(model).program(*arrays).module)
    made = align_products(module, device=CPU, devices=("cpu",), least_work=1)
    return carry_padding(made, device=CPU, devices=("cpu",))


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("count", [6, ROWS, ROWS + 190])
@pytest.mark.parametrize("columns", [68, 67])
@pytest.mark.parametrize("model", [scores, scores_of_rows, scores_alone])
def test_columns_are_left_out(model: Any, columns: int, count: int, dtype: torch.dtype) -> None:
    x, w, b = tensors(dtype, (count, 16), (columns, 16), (columns,))
    arrays = [meta.array(t) for t in (x, w, b)]
    with meta.base.config.override(META_TF32=True):
        compiled = meta.vm.compile(padded(model, *arrays))
        name = "dense_cut" if model is scores_alone else "dense_bias_cut"
        assert compiled.kernels() == {f"cublas.{name}": 1}
        expected = x.double() @ w.double().t()
        expected = expected if model is scores_alone else expected + b.double()
        found = compiled(*arrays)
    check(found, expected.view(2, -1, columns), 2e-2, 1e-2)


@pytest.mark.usefixtures("few_columns")
def test_weights_that_were_padded_before_and_other_addresses() -> None:
    x, w, b = tensors(torch.float16, (9, 16), (72, 16), (72,))
    expected = (x.double() @ w.double().t() + b.double())[:, :67]
    given = {"x": x, "w": w, "widths": None, "b": b, "more": None, "axis": 1}
    slices = {"begin": (0, 0), "end": (9, 67)}
    for name in ("x", "w", "b", "out"):
        out = torch.empty(9, 67, dtype=torch.float16)
        moved = {n: odd(t) if n == name else t for n, t in given.items()}
        out = odd(out) if name == "out" else out
        check(run("dense_bias_cut", out, CPU, **moved, **slices), expected, 2e-2, 1e-2)


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [66, 68, 67, 76])
def test_rows_are_copied_in_words_as_large_as_can_be(columns: int, dtype: torch.dtype) -> None:
    x, w = tensors(dtype, (ROWS + 3, 16), (columns, 16))
    expected = x.double() @ w.double().t()
    for shift in range(9):
        memory = torch.full(((ROWS + 3) * columns + 16,), 7.0, dtype=dtype)
        out = memory[shift : shift + expected.numel()].view(expected.shape)
        given = {"x": x, "w": w, "widths": None, "begin": (0, 0), "end": (ROWS + 3, columns)}
        check(run("dense_cut", out, CPU, **given), expected, 5e-2, 1e-1)
        around = memory[:shift], memory[shift + expected.numel() :]
        assert all((part == 7.0).all() for part in around)


def with_padding(x: Any, w: Any, b: Any, model: Any) -> Any:
    more = -w.shape[0] % 8
    y = op.dense(x, op.pad(w, ((0, more), (0, 0))))
    y = op.reshape(y, (3, -1, w.shape[0] + more)) if "rows" in model else y
    y = y if "alone" in model else op.bias_add(y, op.pad(b, (0, more)), y.ndim - 1)
    return op.reshape(y, (-1,)) if "flat" in model else y


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("columns", [65, 68, 79])
@pytest.mark.parametrize("model", ["", "alone", "rows", "rows alone", "rows flat"])
def test_columns_that_pad_rows_are_zeros(model: str, columns: int, dtype: torch.dtype) -> None:
    x, w, b = tensors(dtype, (6, 16), (columns, 16), (columns,))
    arrays = [meta.array(t) for t in (x, w, b)]
    compiled = meta.vm.compile(meta.model.trace(with_padding), *arrays, model)
    name = "dense_padded" if "alone" in model else "dense_bias_padded"
    assert compiled.kernels() == {f"cublas.{name}": 1}
    expected = x.double() @ w.double().t() + (0 if "alone" in model else b.double())
    expected = torch.nn.functional.pad(expected, (0, -columns % 8))
    found = compiled(*arrays, model).torch().view(expected.shape)
    check(meta.array(found), expected, 5e-2, 5e-2)
    assert not found[:, columns:].any()


@pytest.mark.usefixtures("few_columns")
def test_padded_rows_at_other_addresses() -> None:
    x, w, b = tensors(torch.float16, (9, 16), (67, 16), (67,))
    expected = torch.nn.functional.pad(x.double() @ w.double().t() + b.double(), (0, 5))
    given = {"x": x, "w": w, "widths": (0, 5, 0, 0), "b": b, "more": (0, 5), "axis": 1}
    for name in ("x", "w", "b", "out"):
        moved = {n: odd(t) if n == name else t for n, t in given.items()}
        out = torch.full((9, 72), torch.nan, dtype=torch.float16)
        out = odd(out) if name == "out" else out
        check(run("dense_bias_padded", out, CPU, **moved), expected, 2e-2, 1e-2)


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize(
    ("widths", "more", "axis", "why"),
    [
        ((0, 5, 0, 0), (0, 5), 0, "the bias is not along the last axis"),
        ((0, 5, 0, 0), (5, 0), 1, "the bias is of other columns"),
        ((5, 0, 0, 0), (5, 0), 1, "more than columns at the end is padded"),
        ((0, 5, 8, 0), (0, 5), 1, "more than columns at the end is padded"),
        ((0, 4, 0, 0), (0, 4), 1, "not padded to rows of 8 elements"),
        ((0, 13, 0, 0), (0, 13), 1, "not padded to rows of 8 elements"),
        ((0, -3, 0, 0), (0, -3), 1, "not padded to rows of 8 elements"),
    ],
)
def test_other_padding_stays(
    widths: tuple[int, ...], more: tuple[int, ...], axis: int, why: str
) -> None:
    wide = 67 + widths[0] + widths[1]
    types = {
        n: meta.ir.TensorType(s, "float16") for n, s in {"x": (wide, 16), "w": (67, 16)}.items()
    }
    types |= {"widths": widths, "b": meta.ir.TensorType((67,), "float16"), "more": more}
    result = meta.ir.TensorType((wide, wide), "float16")
    with pytest.raises(Unsupported, match=why):
        cublas.patterns["dense_bias_padded"].prepare(types | {"axis": axis}, result, CPU)


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("how", ["pad_value=1.0", 'pad_mode="edge"'])
def test_padding_with_other_numbers_stays(how: str) -> None:
    module = parse(
        f"""
    func @main(%x: float16[4, 8], %w: float16[67, 8]) -> float16[4, 72] {{
      %0: float16[72, 8] = pad(%w, pad_width=(0, 5, 0, 0), {how})
      %1: float16[4, 72] = dense(%x, %0)
      return %1
    }}""".replace("'", '"')
    )
    x, w = tensors(torch.float16, (4, 8), (67, 8))
    compiled = meta.vm.compile(module)
    assert "cublas.dense_padded" not in compiled.kernels()
    last = torch.ones(5, 8) if "value" in how else w[-1:].expand(5, 8)
    expected = x.double() @ torch.cat([w.double(), last.double()]).t()
    check(compiled(meta.array(x), meta.array(w)), expected, 2e-2, 1e-2)


def test_memory_of_its_own_is_some_rows() -> None:
    x, w = (meta.ir.TensorType(s, "float16") for s in ((4096, 32), (50272, 32)))
    result = meta.ir.TensorType((4096, 50265), "float16")
    types = {"x": x, "w": w, "widths": None, "begin": (0, 0), "end": (4096, 50265)}
    made = cublas.patterns["dense_cut"].prepare(types, result, CPU)
    assert made.workspace_bytes == ROWS * 50264 * 2


def cut_from(end: tuple[int, int], widths: tuple[int, ...]) -> Module:
    return parse(f"""
    func @main(%x: float16[4, 8], %w: float16[67, 8]) -> float16[{end[0]}, {end[1]}] {{
      %0: float16[72, 8] = pad(%w, pad_width={widths})
      %1: float16[4, 72] = dense(%x, %0)
      %2: float16[{end[0]}, {end[1]}] = strided_slice(%1, begin=(0, 0), end={end})
      return %2
    }}""")


@pytest.mark.usefixtures("few_columns")
def test_weights_with_rows_before_are_read_as_they_were_padded() -> None:
    x, w = tensors(torch.float16, (4, 8), (67, 8))
    compiled = meta.vm.compile(cut_from((4, 65), (3, 2, 0, 0)))
    assert compiled.kernels().get("cublas.dense_cut") == 1
    expected = torch.cat([torch.zeros(4, 3), x.double() @ w.double().t()[:, :62]], 1)
    check(compiled(meta.array(x), meta.array(w)), expected, 2e-2, 1e-2)


@pytest.mark.parametrize(
    ("end", "why"),
    [((2, 67), "rows are left out, too"), ((4, 67), "fewer than 4096 columns")],
)
def test_other_slices_stay(end: tuple[int, int], why: str) -> None:
    assert why in explain_fusion(cut_from(end, (0, 5, 0, 0)), device=CPU)


@pytest.mark.usefixtures("few_columns")
@pytest.mark.parametrize("more", [4, 5, 6])
def test_a_bias_of_fewer_columns_stays(more: int) -> None:
    module = parse(f"""
    func @main(%x: float16[4, 8], %w: float16[72, 8], %b: float16[{72 - more}]) -> float16[4, 67] {{
      %0: float16[4, 72] = dense(%x, %w)
      %1: float16[72] = pad(%b, pad_width=(0, {more}), pad_value=2.0)
      %2: float16[4, 72] = bias_add(%0, %1)
      %3: float16[4, 67] = strided_slice(%2, begin=(0, 0), end=(4, 67))
      return %3
    }}""")
    x, w, b = tensors(torch.float16, (4, 8), (72, 8), (72 - more,))
    expected = x.double() @ w.double().t() + torch.nn.functional.pad(b.double(), (0, more), value=2)
    found = meta.vm.compile(module)(*map(meta.array, (x, w, b)))
    check(found, expected[:, :67], 2e-2, 1e-2)
