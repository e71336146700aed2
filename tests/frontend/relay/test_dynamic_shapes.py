"""Chains of Relay operators in which extents are known at run time only: calls that read them, and
calls that meet them, interpreted and compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meta
import meta.frontend.relay.converters
from meta.base.errors import TypeInferError
from meta.frontend.core import CallSite
from meta.frontend.relay.registry import relay
from meta.op.core import tree

X = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
LIKE_X = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
BIAS = np.array([0.5, -1.0, 0.0, 2.0], np.float32)
SHAPES = [np.array(s, np.int64) for s in ((6, 4), (-1, 4), (6, -1))]


def call(name: str, *args: Any, **attributes: Any) -> Any:
    args = tuple(meta.array(a) if isinstance(a, np.ndarray) else a for a in args)
    return relay.apply(CallSite(name, (0, 15), frozenset(attributes)), args, attributes)


def elementwise(y: Any) -> Any:
    return call("tanh", call("multiply", call("nn.relu", call("add", y, BIAS)), y))


def beside_known_extents(y: Any) -> Any:
    total = call("nn.relu", call("add", y, LIKE_X))
    return call("exp", total), call("subtract", call("sqrt", total), LIKE_X)


def reduced(y: Any) -> Any:
    mean = call("mean", y, axis=(0,), keepdims=True)
    return call("divide", call("subtract", y, mean), call("sum", y, axis=(1,), keepdims=True))


def reshaped_by_its_own_shape(y: Any) -> Any:
    rows = call("take", call("shape_of", y, dtype="int64"), np.array([0]), axis=0)
    return call("dyn.reshape", y, call("concatenate", (rows, np.array([-1, 2])), axis=0))


def broadcast_to_its_own_shape(y: Any) -> Any:
    return call("dyn.broadcast_to", BIAS, call("shape_of", y, dtype="int64"))


def counted(y: Any) -> Any:
    return call("ndarray_size", y, dtype="int64"), call("zeros_like", y)


def joined(y: Any) -> Any:
    both = call("concatenate", (y, LIKE_X), axis=0)
    return call("transpose", both, axes=(1, 0)), call("stack", (y, LIKE_X), axis=0)


def cut(y: Any) -> Any:
    parts = call("split", y, indices_or_sections=2, axis=0)
    rest = call("split", y, indices_or_sections=(1, 3), axis=1)
    begun = call("strided_slice", y, begin=(1,), end=(3,), strides=(1,), axes=None)
    return (*parts, *rest, begun)


def reordered(y: Any) -> Any:
    flat = call("reshape", y, newshape=(-1,))
    blocks = call("reshape", y, newshape=(0, 2, 2))
    return flat, call("squeeze", call("expand_dims", blocks, axis=0), axis=(0,))


def sorted_and_chosen(y: Any) -> Any:
    best = call("topk", y, k=2, axis=1, dtype="int32")
    return (*best, call("argmax", y, axis=(1,)), call("cumsum", y, axis=0))


def picked(y: Any) -> Any:
    places = call("argwhere", call("greater", y, np.array(0.0, np.float32)))
    rows = call("take", places, np.array(0), axis=1)
    return call("take", y, rows, axis=0)


def merged(y: Any) -> Any:
    cube = call("reshape", y, newshape=(0, 2, 2))
    return call("reshape", cube, newshape=(-3, 0)), call("reshape", y, newshape=(-4, 2, -1, -2))


def sliced_like(y: Any) -> Any:
    wide = np.arange(63, dtype=np.float32).reshape(9, 7)
    return call("slice_like", wide, y, axes=None), call("slice_like", y, wide[:2, :3], axes=(1,))


def written_to(y: Any) -> Any:
    places = np.array([[-1, 0, 1, -2]])
    rows = call("scatter_elements", y, places, LIKE_X[:1], axis=0, reduction="add")
    points = call("scatter_nd", y, np.array([[0, -1], [-1, 2]]), BIAS[:2], mode="update")
    return rows, points


def sequences(y: Any) -> Any:
    lengths = np.array([1, 6, 2, 3])
    backwards = call("reverse_sequence", y, lengths, seq_axis=0, batch_axis=1)
    return call("sequence_mask", y, lengths), backwards


def all_sorted(y: Any) -> Any:
    return call("topk", y, k=0, axis=0, ret_type="values")


def grown(y: Any) -> Any:
    image = call("expand_dims", y, axis=0, num_newaxis=2)
    return call("nn.upsampling", image, scale_h=2.0, scale_w=1.5)


CHAINS = [
    merged,
    sliced_like,
    written_to,
    sequences,
    all_sorted,
    grown,
    elementwise,
    beside_known_extents,
    reduced,
    reshaped_by_its_own_shape,
    broadcast_to_its_own_shape,
    counted,
    joined,
    cut,
    reordered,
    sorted_and_chosen,
    picked,
]


@pytest.mark.parametrize("chain", CHAINS)
def test_chain(chain: Callable[[Any], Any]) -> None:
    @meta.model.trace
    def program(x: Any, shape: Any) -> Any:
        return chain(call("dyn.reshape", x, shape))

    want = [w.numpy() for w in tree.flatten(chain(meta.array(X)))[0]]
    x, shapes = meta.array(X), [meta.array(s) for s in SHAPES]
    compiled = meta.vm.compile(program, x, shapes[0])
    for run in (program, compiled):
        for shape in shapes:
            for found, expected in zip(tree.flatten(run(x, shape))[0], want, strict=True):
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_an_error_when_it_runs() -> None:
    @meta.model.trace
    def program(x: Any, shape: Any) -> Any:
        return call("add", call("dyn.reshape", x, shape), LIKE_X)

    x = meta.array(X)
    compiled = meta.vm.compile(program, x, meta.array(SHAPES[0]))
    for run in (program, compiled):
        with pytest.raises(TypeInferError, match="cannot be broadcast"):
            run(x, meta.array(np.array([4, 6])))
        with pytest.raises(TypeInferError, match="number of elements"):
            run(x, meta.array(np.array([5, 5])))
