"""Symbolic dimensions: one compiled program runs for all sizes in the declared ranges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError
from meta.ir import Function, SymbolicDim, parse_function, parse_type
from meta.model import Model, value_and_grad
from meta.model.zoo import LeNet
from meta.testing import check
from meta.vm import Executable
from meta.vm.compiler.calling_convention import DIMS, DimRange, declared, ranges_of
from tests.model.networks import MLP, BasicBlock, Encoder, WithLoss


def main(*types: str) -> Function:
    params = ", ".join(f"%p{i}: {t}" for i, t in enumerate(types))
    return parse_function(f"fn({params}) {{\n  return %p0\n}}")


def test_ranges_are_an_attribute_of_main() -> None:
    function = declared(main("float32[n, m, 3]"), {"n": (2, 8)})
    assert function.attrs[DIMS] == (("m", 1, None), ("n", 2, 8))
    assert ranges_of(function) == {"m": DimRange(), "n": DimRange(2, 8)}
    assert declared(function, {"m": (1, 4)}).attrs[DIMS] == (("m", 1, 4), ("n", 2, 8))


def test_a_static_main_declares_nothing() -> None:
    assert declared(main("float32[3]"), {}).attrs == {}


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"k": (1, 2)}, "no argument has a dimension 'k'"),
        ({"n": (0, 2)}, "the range of dimension 'n' is not one"),
        ({"n": (3, 2)}, "the range of dimension 'n' is not one"),
    ],
)
def test_wrong_ranges(dims: dict[str, tuple[int, int]], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        declared(main("float32[n]"), dims)


def test_an_extent_that_no_argument_says() -> None:
    with pytest.raises(ArgumentError, match="nothing says what the dimension 'n' is"):
        declared(main("float32[2*n]"), {})


# Programs.


def compiled(network: Model, x: str, dims: dict[str, tuple[int, int | None]]) -> Executable:
    return meta.vm.compile(network.eval(), parse_type(x), dims=dims)


def test_out_of_range_names_dimension_range_and_value() -> None:
    exe = compiled(MLP(), "float32[n, 5]", {"n": (2, 8)})
    for n in (2, 8):
        assert exe(meta.array(torch.ones(n, 5))).shape == (n, 10)
    for n in (1, 9):
        with pytest.raises(ArgumentError) as caught:
            exe(meta.array(torch.ones(n, 5)))
        text = str(caught.value)
        assert "dimension 'n' is out of range: axis 0 of %x" in text
        assert "expected: 2 to 8" in text and f"found:    {n}" in text


def test_another_shape_or_dtype_is_refused() -> None:
    exe = compiled(MLP(), "float32[n, 5]", {})
    for wrong in (torch.ones(3, 6), torch.ones(3), torch.ones(3, 5, dtype=torch.float64)):
        with pytest.raises(ArgumentError, match="not of the type compiled for"):
            exe(meta.array(wrong))


def test_equal_names_are_equal_extents() -> None:
    @meta.model.trace
    def add(x: Any, y: Any) -> Any:
        return x + y

    n = parse_type("float32[n]")
    exe = meta.vm.compile(add, n, n)
    assert exe(meta.array([1.0, 2.0]), meta.array([1.0, 2.0])).numpy().tolist() == [2.0, 4.0]
    with pytest.raises(ArgumentError, match="not of the type compiled for"):
        exe(meta.array([1.0, 2.0]), meta.array([1.0]))


@pytest.mark.parametrize(
    ("make", "x", "sizes"),
    [
        (MLP, "float32[n, 5]", [(1,), (3,), (64,)]),
        (LeNet, "float32[n, 1, 28, 28]", [(1,), (4,)]),
        (lambda: Encoder(16, 2), "float32[n, s, 16]", [(1, 1), (2, 7), (3, 5)]),
        (lambda: BasicBlock(4, 8), "float32[n, 4, h, w]", [(1, 5, 6), (2, 9, 4)]),
    ],
    ids=["mlp", "lenet", "encoder", "block"],
)
def test_one_program_for_all_sizes(make: Any, x: str, sizes: list[tuple[int, ...]]) -> None:
    network = make()
    exe = compiled(network, x, {})
    type_ = parse_type(x)
    names = [d for d in type_.shape if isinstance(d, SymbolicDim)]
    for size in sizes:
        extents = {str(d): n for d, n in zip(names, size, strict=True)}
        shape = [d.evaluate(extents) if isinstance(d, SymbolicDim) else d for d in type_.shape]
        values = meta.array(torch.randn(shape))
        check(exe(values), network(values), 1e-4, 1e-4)


def test_a_training_step_for_all_sizes() -> None:
    step = value_and_grad(WithLoss(Encoder(16, 2)))
    types = parse_type("float32[n, s, 16]"), parse_type("int64[n]")
    exe = meta.vm.compile(step, meta.array(1.0), *types)
    for n, s in ((1, 1), (2, 3), (5, 4)):
        x, labels = torch.randn(n, s, 16), torch.randint(0, 10, (n,))
        args = meta.array(1.0), meta.array(x), meta.array(labels)
        (loss, gradients), (expected, wanted) = exe(*args), step(*args)
        check(loss, expected, 1e-4, 1e-4)
        for name, gradient in gradients.items():
            check(gradient, wanted[name], 1e-3, 1e-3, what=name)


def test_an_extent_in_an_attribute_alone() -> None:
    @meta.model.trace
    def ramp(x: Any) -> Any:
        return meta.op.zeros((x.shape[0], 2), "float32"), meta.op.zeros((3 * x.shape[0],), "int32")

    exe = meta.vm.compile(ramp, parse_type("float32[n, 7]"))
    for n in (2, 5):
        a, b = exe(meta.array(torch.ones(n, 7)))
        assert a.shape == (n, 2) and b.shape == (3 * n,) and not a.torch().any()


def test_in_a_loop_and_a_branch() -> None:
    @meta.model.trace
    def doubled_until(x: Any) -> Any:
        def body(state: Any) -> Any:
            return meta.op.reshape(meta.op.reshape(state, (2 * x.shape[0],)), (x.shape[0], 2)) * 2.0

        y = meta.while_loop(lambda s: meta.less(meta.sum(s), 100.0), body, x)
        return meta.cond(meta.less(meta.sum(x), 0.0), lambda v: v * 0.0, lambda v: v, y)

    exe = meta.vm.compile(doubled_until, parse_type("float32[n, 2]"))
    for n in (1, 4):
        values = meta.array(torch.ones(n, 2))
        check(exe(values), doubled_until(values), 0, 0)


def test_the_text_of_the_code_says_what_extents_are_read() -> None:
    @meta.model.trace
    def rows(x: Any) -> Any:
        return meta.op.zeros((x.shape[0],), "float32")

    text = str(meta.vm.compile(rows, parse_type("float32[n, 7]")).code)
    assert "extent 0 of r0" in text and "dim n" in text
