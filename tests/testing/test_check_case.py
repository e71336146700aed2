"""`check_case` finds what is wrong with an operator of others, whichever part of it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import BackendError, GradientError, TypeInferError
from meta.dialect import only
from meta.grad.core import gradient
from meta.ir.types import SymbolicDim
from meta.op.core import Tensor
from meta.testing import F, OpCase, check_case, sample
from tests.registered import Author, author


@pytest.fixture
def own() -> Iterator[Author]:
    with author() as made, only("author", "torch"):
        yield made


def same(x: Tensor) -> Tensor:
    return x


def twice(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).contiguous()


def check(
    own: Author,
    types: Callable[..., Any] = same,
    kernel: Callable[..., Any] = twice,
    rule: Callable[..., Any] = lambda dy: dy * 2.0,
) -> None:
    """Check an operator that doubles, with some of its parts exchanged."""
    base = own.kernel(types, kernel)
    gradient(base)(rule)
    check_case(OpCase(base.name, [sample(F(2, 3)), sample(F(4))], lambda x: x * 2, ("float32",)))


def test_an_operator_without_a_fault(own: Author) -> None:
    check(own)


def forgets(x: torch.Tensor, out: torch.Tensor) -> None:
    out[:1] = x[:1] * 2


def writes(x: torch.Tensor) -> torch.Tensor:
    x *= 2
    return x.clone()


KERNELS: dict[str, Callable[..., Any]] = {
    "a compact float32": lambda x: x.sum(-1),
    "float64": lambda x: x.double() * 2,
    "with strides": lambda x: (x.t() * 2).contiguous().t() if x.dim() == 2 else x * 2,
    r"with strides \(1, 2\)": lambda x: x * 2,
    "shares the memory": lambda x: x,
    "no result": lambda x: {}.get("y"),
    "as they were": forgets,
    "was written": writes,
}


@pytest.mark.parametrize("found", KERNELS)
def test_a_kernel(found: str, own: Author) -> None:
    with pytest.raises(BackendError, match=found):
        check(own, kernel=KERNELS[found])


def test_values(own: Author) -> None:
    with pytest.raises(AssertionError, match=r"author.authored0\(F\[2, 3\]\) in float32"):
        check(own, kernel=lambda x: (x * 3).contiguous())


RULES: dict[str, Callable[..., Any]] = {
    r"float64\[\]": lambda dy: dy.sum(),
    r"float32\[2, 3\]": lambda dy: dy.astype("float32"),
    "there is no gradient": lambda dy: None,
}


@pytest.mark.parametrize("found", RULES)
def test_the_type_of_a_gradient(found: str, own: Author) -> None:
    with pytest.raises(GradientError, match=found):
        check(own, rule=RULES[found])


def test_the_value_of_a_gradient(own: Author) -> None:
    with pytest.raises(AssertionError, match="gradient 0 of authored0"):
        check(own, rule=lambda dy: dy * 3.0)


def test_a_gradient_that_is_another_in_a_program(own: Author) -> None:
    def rule(dy: Any) -> Any:
        return dy * (2.0 if isinstance(dy, meta.ndarray) else 3.0)

    with pytest.raises(AssertionError, match="traced gradient 0 of authored0"):
        check(own, rule=rule)


def test_a_type_function_that_changes_its_mind(own: Author) -> None:
    calls = itertools.count()

    def moody(x: Tensor) -> Tensor:
        return x if next(calls) % 2 else x.with_dtype("float64")

    with pytest.raises(AssertionError, match="and the second time"):
        check(own, types=moody)


def test_a_type_function_that_is_wrong_of_symbols(own: Author) -> None:
    def halves(x: Tensor) -> Tensor:
        if any(isinstance(d, SymbolicDim) for d in x.shape):
            return x.with_shape(x.shape[1:])
        return x

    with pytest.raises(AssertionError, match=r"the type function of authored0.* says .*, and of"):
        check(own, types=halves)


def test_extents(own: Author) -> None:
    def nothing(x: Tensor) -> Tensor:
        return x.with_shape((None,))

    with pytest.raises(TypeInferError, match="no extent"):
        check(own, types=nothing)
