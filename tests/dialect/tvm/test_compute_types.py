"""A TE function of others returns what the type function says, alone and fused with neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tvm import te

import meta
from meta.base.errors import BackendError
from meta.dialect import only
from meta.dialect.tvm.compute import INJECTIVE, compute
from meta.op.core import Op, Tensor
from tests.registered import Author, author


@pytest.fixture
def own() -> Iterator[Author]:
    with author() as made, only("tvm"):
        yield made


def computed(own: Author, function: Callable[..., Any]) -> Op:
    """Return an operator that says it returns what it is given."""

    def same(x: Tensor) -> Tensor:
        return x

    base = own.op(same)
    compute(base, INJECTIVE)(function)
    return base


WRONG: dict[str, Callable[..., Any]] = {
    r"float32\[3, 2\]": lambda x: te.compute((3, 2), lambda i, j: x(j, i)),
    r"float32\[2\]": lambda x: te.compute((2,), lambda i: x(i, 0)),
    r"float32\[1, 3\]": lambda x: te.compute((1, 3), lambda i, j: x(i, j)),
    r"float64\[2, 3\]": lambda x: te.compute((2, 3), lambda i, j: x(i, j).astype("float64")),
    "NoneType": lambda x: None,
    "no result": lambda x: [],
}


@pytest.mark.parametrize("found", WRONG)
def test_another_type_is_an_error(found: str, own: Author) -> None:
    base, x = computed(own, WRONG[found]), meta.ones((2, 3))
    fused = meta.model.trace(lambda x: meta.exp(base(x)) + 1.0)
    for run in (lambda: base(x), lambda: meta.vm.compile(fused, x)):
        with pytest.raises(BackendError, match=found) as caught:
            run()
        assert caught.value.op == base.name and f"{__file__}:" in caught.value.what


def test_the_type_that_is_said_is_taken(own: Author) -> None:
    base = computed(own, lambda x: te.compute((2, 3), lambda i, j: x(i, j) * 2))
    fused = meta.model.trace(lambda x: base(x) + 1.0)
    x = meta.ones((2, 3))
    assert meta.vm.compile(fused, x)(x).tolist() == [[3.0] * 3] * 2
