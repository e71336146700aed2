"""What type functions return: an author's mistake is told of at the author's line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import TypeInferError
from meta.ir.types import UNKNOWN, SymbolicDim, TensorType
from meta.op.core import Tensor
from tests.registered import Author, author


@pytest.fixture
def own() -> Iterator[Author]:
    with author() as made:
        yield made


def _eager(base: Any) -> Any:
    return base(meta.ones((2, 3)))


def _traced(base: Any) -> Any:
    return meta.model.trace(lambda x: base(x)).program(meta.ones((2, 3)))


EXTENTS = [None, "n", 2.5, True, np.int64(2), (2,)]


@pytest.mark.parametrize("run", [_eager, _traced])
@pytest.mark.parametrize("extent", EXTENTS)
def test_what_is_no_extent_is_refused_where_it_is_written(
    extent: Any, run: Callable[..., Any], own: Author
) -> None:
    def wrong(x: Tensor) -> Tensor:
        return x.with_shape((2, extent))

    base = own.kernel(wrong, lambda x: x * 1)
    with pytest.raises(TypeInferError, match="no extent") as caught:
        run(base)
    error, code = caught.value, wrong.__code__
    assert error.op == base.name and repr(extent) in str(error.found)
    assert error.span is not None and error.span.file == __file__
    assert error.span.line == code.co_firstlineno + 1


@pytest.mark.parametrize("extent", [2, 0, SymbolicDim("n"), SymbolicDim("n") // 2, UNKNOWN])
def test_extents_are_numbers_symbols_and_unknown(extent: Any) -> None:
    assert TensorType((extent,), "float32").shape == (extent,)
    assert TensorType((extent,), "float32").with_dtype("int8").shape == (extent,)


def test_a_shape_is_a_tuple() -> None:
    with pytest.raises(TypeInferError, match="no shape of a tensor") as caught:
        TensorType([2, 3], "float32")  # type: ignore[arg-type]
    assert caught.value.span is not None and caught.value.span.file == __file__


RESULTS: dict[str, Callable[..., Any]] = {
    r"returns \(2, 3\)": lambda x: x.shape,
    "returns None": lambda x: None,
    "returns 2": lambda x: x.ndim,
    r"returns \[": lambda x: [x, x],
    r"returns \(": lambda x: (x, 3),
    "unknown dtype 'f32'": lambda x: x.with_dtype("f32"),
    "returns tensor": lambda x: torch.ones(3),
}


@pytest.mark.parametrize("run", [_eager, _traced])
@pytest.mark.parametrize("found", RESULTS)
def test_what_is_no_type_of_a_tensor_is_refused(
    found: str, run: Callable[..., Any], own: Author
) -> None:
    function = RESULTS[found]

    def wrong(x: Tensor) -> Tensor:
        return function(x)  # type: ignore[no-any-return]

    base = own.kernel(wrong, lambda x: x * 1)
    with pytest.raises(TypeInferError, match=found) as caught:
        run(base)
    error = caught.value
    assert error.op == base.name and f"type function: {base.site}" in error.notes
    assert base.site.file == __file__


def test_a_type_among_values_is_no_result(own: Author) -> None:
    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, 3  # type: ignore[return-value]

    with pytest.raises(TypeInferError, match="its type function returns"):
        own.op(pair)(meta.ones((2, 3)))
