"""`einsum`: numpy's results, errors, and gradients of gradients."""

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import TypeInferError
from meta.testing import randn, randn_torch

# numpy and torch differ: numpy does not sum over an ellipsis that the result leaves out.
EQUATIONS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ba", [(2, 3)]),
    ("Ba", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("iij->ji", [(3, 3, 2)]),
    ("...i,i...", [(2, 1, 3), (3, 5)]),
    ("i...j,j->...i", [(2, 4, 3), (3,)]),
    ("ab,bc,ca->", [(2, 3), (3, 4), (4, 2)]),
    ("ij,jk->ik", [(2, 1), (3, 4)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_the_notation_is_that_of_numpy(equation, shapes) -> None:
    arrays = [randn(s, dtype="float64") for s in shapes]
    found = meta.einsum(equation, *arrays).numpy()
    np.testing.assert_allclose(found, np.einsum(equation, *[a.numpy() for a in arrays]))


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "another number of operands"),
        ("ij", [(2, 3), (3,)], "another number of operands"),
        ("i1->i", [(2, 3)], r"'1' in 'i1' is no label"),
        ("ij->i->j", [(2, 3)], "is no label"),
        ("i..j", [(2, 3)], "is no label"),
        ("......", [(2, 3)], "is no label"),
        ("ijk", [(2, 3)], "operand 0 has 2 axes"),
        ("i", [(2, 3)], "operand 0 has 2 axes"),
        ("ijk...", [(2, 3)], "operand 0 has 2 axes"),
        ("ij->ik", [(2, 3)], "no operand has the result's label 'k'"),
        ("ij->ii", [(2, 3)], "the result has the label 'i' twice"),
        ("ii", [(2, 3)], "label 'i' is twice on operand 0, with the extents 2 and 3"),
        ("ii", [(1, 3)], "label 'i' is twice on operand 0"),
        ("ij,jk", [(2, 3), (4, 5)], "label 'j' has the extent 3, and 4 on operand 1"),
        ("...i,...i", [(2, 3), (4, 3)], r"label '\.\.\.0' has the extent 2, and 4"),
    ],
)
def test_what_does_not_fit_is_refused(equation, shapes, message) -> None:
    with pytest.raises(TypeInferError, match=message):
        meta.einsum(equation, *tuple(randn(s) for s in shapes))


def test_operands_have_one_dtype_of_numbers() -> None:
    with meta.strict_dtypes(), pytest.raises(TypeInferError, match="differ in dtype"):
        meta.einsum("i,i", randn((2,)), randn((2,), dtype="float64"))
    with pytest.raises(TypeInferError, match="bools have no product"):
        meta.einsum("i->", randn((2,)) > 0)
    with pytest.raises(TypeInferError, match="operands is empty"):
        meta.einsum("->")


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 2)]),
        ("iji,i...->j...", [(3, 2, 3), (3, 2)]),
        ("ab,b->", [(2, 1), (3,)]),
    ],
)
def test_a_gradient_has_a_gradient(equation, shapes) -> None:
    pairs = [randn_torch(s, dtype="float64", requires_grad=True) for s in shapes]
    ours, theirs = zip(*pairs, strict=True)
    y = meta.einsum(equation, *ours)
    expected = torch.einsum(equation, *theirs)
    first = meta.grad.grad(meta.sum(y * y * y), ours, create_graph=True)
    wanted = torch.autograd.grad((expected**3).sum(), theirs, create_graph=True)
    for one, other in zip(first, wanted, strict=True):
        assert one.torch().allclose(other)
    second = meta.grad.grad(meta.sum(first[0] * first[0]), ours)
    wanted = torch.autograd.grad((wanted[0] ** 2).sum(), theirs)
    for one, other in zip(second, wanted, strict=True):
        assert one.torch().allclose(other)


def test_operands_may_be_one_tuple() -> None:
    x, y = randn((2, 3)), randn((3, 2))
    assert (meta.einsum("ij,jk", (x, y)).numpy() == meta.einsum("ij,jk", x, y).numpy()).all()


SHAPES = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)),
    ((0, 2, 3), (3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((2, 0), (0, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_matmul_takes_what_numpys_takes(first, second) -> None:
    x, y = randn(first, dtype="float64"), randn(second, dtype="float64")
    wanted = np.matmul(x.numpy(), y.numpy())
    traced = meta.model.trace(lambda a, b: meta.matmul(a, b))
    for found in (meta.matmul(x, y), x @ y, traced(x, y), meta.vm.compile(traced, x, y)(x, y)):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found.numpy(), wanted)


def test_matmul_takes_no_numbers_and_fitting_extents_only() -> None:
    with pytest.raises(TypeInferError, match="needs vectors or matrices"):
        meta.matmul(randn(()), randn((2,)))
    with pytest.raises(TypeInferError, match="inner extents 3 and 4 differ"):
        meta.matmul(randn((2, 2, 3)), randn((4, 2)))


def test_the_program_of_a_product_of_matrices_is_one_call() -> None:
    x = meta.ir.parse_type("float32[2, 2]")
    program = meta.model.trace(lambda a: meta.matmul(a, a)).program(x)
    assert [b.value.callee.name for b in meta.ir.bindings(program.module.main)] == ["matmul"]


def test_the_result_is_no_view_of_an_operand() -> None:
    x = randn((3, 3))
    for equation in ("ij", "ji->ij", "ii->i"):
        y = meta.einsum(equation, x)
        assert y.torch().untyped_storage().data_ptr() != x.torch().untyped_storage().data_ptr()
