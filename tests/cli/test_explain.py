"""`meta.explain`: the candidates of a call, without data and without running it."""

from __future__ import annotations

import pytest

import meta
from meta.base.errors import ArgumentError, TypeInferError
from meta.ir import TensorType

X = TensorType((2, 3), "float32")


def test_types_stand_for_arrays() -> None:
    found = meta.explain(meta.softmax, X)
    assert found.records() == meta.explain(meta.softmax, meta.array([[0.0] * 3] * 2)).records()
    assert found.chosen is not None
    assert [r["chosen"] for r in found.records()].count(True) == 1


def test_one_dialect() -> None:
    found = meta.explain(meta.op.torch.softmax, X)
    assert found.chosen is not None and found.chosen.dialect_op.dialect.name == "torch"
    assert "->  torch" in str(found)


def test_nobody() -> None:
    with meta.dialect.only("torch"), meta.dialect.exclude("torch"):
        found = meta.explain(meta.softmax, X)
    assert found.chosen is None
    assert "nobody accepts" in str(found) and "excluded by exclude()" in str(found)


def test_no_kernel_is_needed() -> None:
    assert "view" in str(meta.explain(meta.reshape, X, (6,)))
    assert "known now: (2, 3)" in str(meta.explain(meta.shape, X))


def test_wrong_calls() -> None:
    with pytest.raises(ArgumentError, match="explain needs an operator"):
        meta.explain("softmax", X)
    with pytest.raises(TypeInferError):
        meta.explain(meta.softmax, X, axis=7)
