"""Reductions and what reads them on CUDA, emulated, where dlight has the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meta
from meta import op

BEHIND: dict[str, Callable[[Any], Any]] = {
    "tile": lambda y: op.tile(y, (2,)),
    "tile rows": lambda y: op.tile(y, (2, 3, 1)),
    "broadcast": lambda y: op.broadcast_to(y, (4, *y.shape)),
    "wider": lambda y: op.add(y, op.ones((3, 1, 1, 1), "int32", device="cpu")),
    "cast, tile": lambda y: op.tile(op.astype(y, "int64"), (3,)),
    "itself": lambda y: y * 2 + 1,
}
MORE = [(2, 3, 4, 5), (3, 16, 8, 16), (2, 1, 1, 4)]
SHAPES = [(1, 7, 3, 2), *(pytest.param(shape, marks=pytest.mark.slow) for shape in MORE)]


@pytest.mark.product
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BEHIND)
def test_results(name: str, shape: tuple[int, int, int, int], on_cuda: None) -> None:
    batch, rows, common, columns = shape
    rng = np.random.default_rng(0)
    x = rng.integers(-5, 6, (batch, common, rows)).astype("int32")
    y = rng.integers(-5, 6, (batch, columns, common)).astype("int32")

    def program(x: Any, y: Any) -> Any:
        return BEHIND[name](op.batch_matmul_nt(op.permute_dims(x, (0, 2, 1)), y))

    with meta.dialect.only("tvm"):
        compiled = meta.vm.compile(meta.model.trace(program), meta.array(x), meta.array(y))
        found = np.asarray(compiled(meta.array(x), meta.array(y)))
    product = x.transpose(0, 2, 1).astype("int64") @ y.transpose(0, 2, 1)
    with meta.dialect.only("torch"):
        expected = np.asarray(BEHIND[name](meta.array(product.astype("int32"))))
    assert np.array_equal(found, expected)


def test_a_step_that_tvm_refuses_does_not_end_the_process(on_cuda: None) -> None:
    """The gradient of `amin`: a sum over one element, and what is before and behind it."""
    rng = np.random.default_rng(0)
    x, m, dy = (rng.integers(0, 2, (6, 1, 12)).astype("float64") for _ in range(3))

    def program(x: Any, m: Any, dy: Any) -> Any:
        chosen = op.astype(op.equal(x, m), "float64")
        return chosen * (dy / op.sum(chosen, axis=1, keepdims=True))

    given = [meta.array(a) for a in (x, m, dy)]
    with meta.dialect.only("tvm"):
        found = np.asarray(meta.vm.compile(meta.model.trace(program), *given)(*given))
    with np.errstate(all="ignore"):
        chosen = (x == m) * 1.0
        assert np.array_equal(found, chosen * (dy / chosen), equal_nan=True)
