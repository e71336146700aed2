"""Dropout in parts, and casts before views: programs still give the same, in fewer kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.ir import Module, parse
from meta.model import trace
from meta.passes import infer_type, narrow_before_views, split_dropout
from tests.program_text import names

HEAD = "%x: float32[4, 6], %key: int64[1]"
DROPPED = "%d = dropout_train(%x, p=0.3, in_states=%key)\n"


def module(body: str, head: str = HEAD) -> Module:
    return infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))


def test_all_results_stay() -> None:
    given = module(f"{DROPPED}return %d")
    found = infer_type(split_dropout(given))
    assert names(found) == ["dropout_mask", "dropout_dx"]
    x, key = meta.array(torch.randn(4, 6)), meta.array(torch.tensor([7]))
    results = [meta.vm.compile(m, x, key)(x, key) for m in (given, found)]
    with meta.PassContext(disabled=["split_dropout"]):
        results.append(meta.vm.compile(given, x, key)(x, key))
    for one, other, third in zip(*results, strict=True):
        assert torch.equal(one.torch(), other.torch()) and torch.equal(one.torch(), third.torch())


def test_what_draws_its_key_or_has_no_extents_stays() -> None:
    without = module("%d = dropout_train(%x, p=0.3)\nreturn %d")
    assert names(split_dropout(without)) == ["dropout_train"]
    unknown = module(f"{DROPPED}return %d", "%x: float32[n, 6], %key: int64[1]")
    assert names(split_dropout(unknown)) == ["dropout_train"]


def test_branches_are_looked_into() -> None:
    given = module(
        f"%y = if %c {{\n{DROPPED}%e = %d.0\nyield %e\n}} else {{\nyield %x\n}}\nreturn %y",
        f"%c: bool[], {HEAD}",
    )
    text = str(split_dropout(given))
    assert "dropout_mask" in text and "dropout_train" not in text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Through two views; the views that are left are those of the wide numbers.
        (
            "%v = reshape(%x, shape=(24,))\n%w = expand_dims(%v, axis=0)\n"
            '%y = astype(%w, "float16")',
            ["reshape", "expand_dims", "astype", "reshape"],
        ),
        ('%v = reshape(%x, shape=(24,))\n%y = astype(%v, "float64")', ["reshape", "astype"]),
        ('%v = permute_dims(%x)\n%y = astype(%v, "float16")', ["permute_dims", "astype"]),
    ],
)
def test_casts_to_fewer_bits_go_before_views(body: str, expected: list[str]) -> None:
    given = module(f"{body}\nreturn %y", "%x: float32[4, 6]")
    found = infer_type(narrow_before_views(given))
    assert names(found) == expected
    x = meta.array(torch.randn(4, 6))
    one, other = (meta.vm.compile(m, x)(x).torch() for m in (given, found))
    assert one.dtype == other.dtype and torch.equal(one, other)


def test_dropout_fuses_with_what_is_around_it() -> None:
    @trace
    def block(x: Any, key: Any) -> Any:
        y = op.dropout_train(op.softmax(x), 0.5, key)[0]
        return op.astype(op.reshape(y, (2, 2, 6)), "float16")

    x, key = meta.array(torch.randn(4, 6)), meta.array(torch.tensor([7]))
    with meta.dialect.only("tvm"):
        executable = meta.vm.compile(block, x, key)
    assert len(executable.kernels()) <= 2
    mask = op.dropout_mask(key, (4, 6), 0.5).torch()
    expected = (torch.softmax(x.torch(), -1) * mask * 2).reshape(2, 2, 6).half()
    torch.testing.assert_close(executable(x, key).torch(), expected)
