"""What operators make of parts: each function of an array that is divided is, with its gradients,
that of the whole; and which exchange their values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import distributed as dist
from meta import op
from meta.base.errors import DistributedError
from meta.passes.distributed.sharding import ShardAxis
from meta.passes.distributed.sharding_rules import through_reshape
from meta.runtime.placement import Split
from tests.distributed.parallel import gradients, joined

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


class Applied(meta.Model):
    """A function of an input and of parameters, "w" and, of another shape, "v"."""

    def build(self, function: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> None:
        self.function = function
        for name, shape in zip("wv", shapes, strict=False):
            setattr(self, name, meta.model.parameter(meta.ones(shape)))

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return what the function gives."""
        arrays = [getattr(self, n) for n in "wv" if hasattr(self, n)]
        return self.function(x, *arrays)


def heads(x: Any, w: Any) -> Any:
    """Heads that are the second axis, merged with the first one for a product of batches."""
    y = op.permute_dims(op.reshape(op.matmul(x, w), (2, 2, 4, 3)), (0, 2, 1, 3))
    weights = op.softmax(op.matmul(y, op.swapaxes(y, 2, 3)), -1)
    return op.reshape(op.permute_dims(op.matmul(weights, y), (0, 2, 1, 3)), (4, 12))


def chosen(x: Any, w: Any) -> Any:
    """Rows by indices, from the front and from the back."""
    rows = op.astype(op.floor(op.clip(op.abs(x), 0.0, 3.0)), "int64")
    picked = op.take_along_axis(op.log_softmax(op.matmul(x, w), 1), rows[:, :2] - 4, 1)
    return picked * op.embedding(rows[:, 0], op.swapaxes(w, 0, 1), 2)[:, :2]


def thirds(x: Any, w: Any) -> Any:
    """Three arrays side by side, in any order, in a part, and as an axis."""
    y = op.matmul(x, w)
    a, b, c = op.split(y, 3, -1)
    d = op.split(y, (4, 8), 1)[1]
    e, f = y[:, 4:12], y[:, 8:]
    g = op.reshape(y, (4, 3, 2, 2))[:, 1]
    return op.concat((a * b, c - d, e, f), 1) + op.tile(op.reshape(g, (4, 4)), (1, 5))


def grouped(x: Any, w: Any) -> Any:
    """An array and two of half its length side by side: in parts, joined again, and as others."""
    y = op.tanh(op.reshape(op.matmul(x, w), (2, 2, 16)))
    a, b, c = op.split(y, (8, 12), -1)
    d = op.concat((op.concat((a, b), 2), c), 2)[:, :, :12]
    e = op.reshape(a, (2, 2, 4, 2)) * op.reshape(b, (2, 2, 4, 1))
    return op.concat((d, y[..., 8:] * c[..., :1], op.reshape(e, (2, 2, 8))), -1)


@meta.custom_vjp
def doubled(x: Any) -> Any:
    for part in (x, x * 2.0):
        x = x + op.sum(part)
    return x


doubled.defvjp(lambda x: (doubled(x), None), lambda _, dy: (dy * 2.0,))

SHAPES: dict[str, tuple[Callable[..., Any], Any, dict[str, Any], int]] = {
    "columns": (op.matmul, [(6, 8)], {"w": 1}, 1),
    "rows": (lambda x, w: op.matmul(x[:, :4], w), [(4, 8)], {"w": 0}, 0),
    "rows of dense": (lambda x, w: op.dense(x[:, 2:], w), [(8, 4)], {"w": 1}, 0),
    "columns of rows": (
        lambda x, w, v: op.matmul(op.tanh(op.matmul(x, w)), v),
        [(6, 8), (8, 4)],
        {"w": 1, "v": 0},
        0,
    ),
    "columns twice": (
        lambda x, w, v: op.matmul(op.tanh(op.matmul(x, w)), v),
        [(6, 8), (8, 4)],
        {"w": 1, "v": 1},
        2,
    ),
    "columns, then whole": (
        lambda x, w, v: op.matmul(op.tanh(op.matmul(x, w)), v),
        [(6, 8), (8, 4)],
        {"w": 1},
        1,
    ),
    "broadcast": (
        lambda x, w, v: op.where(x[:, :1] > 0, op.matmul(x, w) * v - w[0], v),
        [(6, 8), (8,)],
        {"w": 1},
        1,
    ),
    "broadcast the other way": (
        lambda x, w, v: op.matmul(x, w) * v + op.reshape(v, (1, 8)),
        [(6, 8), (8,)],
        {"v": 0},
        1,
    ),
    "two axes": (lambda x, w, v: w * v + x[:, :4], [(4, 4), (4, 4)], {"w": 0, "v": 1}, 2),
    "bias": (lambda x, w, v: op.bias_add(op.matmul(x, w), v, -1), [(6, 8), (8,)], {"w": 1}, 1),
    "heads": (heads, [(6, 12)], {"w": 1}, 1),
    "thirds": (thirds, [(6, 12)], {"w": (1, 3)}, 2),
    "arrays that differ": (grouped, [(6, 16)], {"w": (1, (2, 1, 1))}, 2),
    "chosen": (chosen, [(6, 4)], {"w": 1}, 0),
    "sums": (
        lambda x, w: op.sum(op.matmul(x, w), 1) + op.mean(op.matmul(x, w) ** 2, (0, 1)),
        [(6, 8)],
        {"w": 1},
        0,
    ),
    "sums along others": (
        lambda x, w: (
            op.sum(op.matmul(x, w), 0, keepdims=True)
            + op.max(op.matmul(x, w), 0)
            - op.var(op.matmul(x, w), 0)
        ),
        [(6, 8)],
        {"w": 1},
        1,
    ),
    "the largest": (lambda x, w: op.max(op.matmul(x, w), 1), [(6, 8)], {"w": 1}, 1),
    "product": (lambda x, w: op.prod(op.matmul(x, w), 1), [(6, 8)], {"w": 1}, 1),
    "softmax": (lambda x, w: op.softmax(op.matmul(x, w), 1), [(6, 8)], {"w": 1}, 1),
    "log softmax": (lambda x, w: op.log_softmax(op.matmul(x, w), -1), [(6, 8)], {"w": 1}, 1),
    "cross entropy": (
        lambda x, w: op.cross_entropy(
            op.matmul(x, w) * 9, op.astype(op.abs(x[:, 0]) * 2, "int64") - 0
        ),
        [(6, 8)],
        {"w": 1},
        0,
    ),
    "cross entropy, smoothed": (
        lambda x, w: op.cross_entropy(
            op.matmul(x, w), op.astype(op.abs(x[:, 0]) * 2, "int64"), label_smoothing=0.1
        ),
        [(6, 8)],
        {"w": 1},
        0,
    ),
    "normalised": (
        lambda x, w, v: op.layer_norm(op.swapaxes(op.matmul(x, w), 0, 1), (4,), v[:4], v[4:]),
        [(6, 8), (8,)],
        {"w": 1},
        1,
    ),
    "normalised along the cut": (
        lambda x, w, v: op.rms_norm(op.matmul(x, w), (8,), v),
        [(6, 8), (8,)],
        {"w": 1},
        1,
    ),
    "stacked": (
        lambda x, w, v: op.stack((op.matmul(x, w), op.matmul(x, v)), 1),
        [(6, 8), (6, 8)],
        {"w": 1},
        1,
    ),
    "joined": (
        lambda x, w, v: op.concat((op.matmul(x, w), op.matmul(x, v)), 0),
        [(6, 8), (6, 8)],
        {"w": 1, "v": 1},
        1,
    ),
    "broadcast to": (
        lambda x, w: op.broadcast_to(op.expand_dims(w, 0), (4, 6, 8)) * op.expand_dims(x, 2),
        [(6, 8)],
        {"w": 1},
        1,
    ),
    "sliced": (
        lambda x, w: op.matmul(x, w)[1:3, ::2] + op.matmul(x, w)[1:3][:, 1:5],
        [(6, 8)],
        {"w": 1},
        2,
    ),
    "squeezed": (
        lambda x, w: op.squeeze(op.matmul(x[:1], w)) * op.squeeze(op.expand_dims(w, 0))[:3],
        [(6, 4)],
        {"w": 1},
        1,
    ),
    "repeated": (
        lambda x, w: op.repeat(op.matmul(x, w), 2, 0) - op.cumsum(op.repeat(w, 2, 1)[:4, :8], 1)[0],
        [(6, 8)],
        {"w": 1},
        2,
    ),
    "along others": (
        lambda x, w: op.sort(op.cumsum(op.matmul(x, w), 0), 0) * op.flip(op.matmul(x, w), 0),
        [(6, 8)],
        {"w": 1},
        1,
    ),
    "channels": (
        lambda x, w, v: op.max_pool2d(
            op.group_norm(op.conv2d(op.reshape(x, (4, 1, 2, 3)), w), 4, v[0], v[1]), 1, 1
        ),
        [(8, 1, 1, 2), (2, 8)],
        {"w": 0},
        1,
    ),
    "groups of channels": (
        lambda x, w, v: op.conv1d(op.reshape(op.matmul(x, w), (4, 8, 1)), v, groups=4),
        [(6, 8), (8, 2, 1)],
        {"w": 1, "v": 0},
        1,
    ),
    "matrices": (
        lambda x, w: op.linalg_det(op.reshape(op.matmul(x, w), (4, 4, 2, 2)) + x[0, 0]),
        [(6, 16)],
        {"w": 1},
        1,
    ),
    "a branch": (
        lambda x, w: meta.cond(op.sum(x) > 0, lambda y: y * 2, lambda y: y - 1, op.matmul(x, w)),
        [(6, 8)],
        {"w": 1},
        1,
    ),
    "a loop": (
        lambda x, w: meta.scan(lambda c, row: (c + row, c), op.matmul(x, w)[0], op.matmul(x, w))[1],
        [(6, 8)],
        {"w": 1},
        2,
    ),
    "a checkpoint": (
        lambda x, w, v: meta.model.checkpoint(lambda y: op.matmul(op.tanh(op.matmul(y, w)), v))(
            op.sin(x)
        ),
        [(6, 8), (8, 4)],
        {"w": 1, "v": 0},
        0,
    ),
    "a function with a rule": (
        lambda x, w: doubled(op.matmul(x, w)),
        [(6, 8)],
        {"w": 1},
        1,
    ),
}
"""By name: a function of x [4, 6], the shapes of its parameters, the axes along which they are
divided, and how many values the ranks gather.
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SHAPES)
def test_parts_give_what_the_whole_gives(name: str, ranks: int) -> None:
    function, shapes, plan, gathers = SHAPES[name]
    make = partial(Applied, function, shapes)
    inputs = (np.random.default_rng(5).standard_normal((4, 6)),)
    y, alone = gradients(make, inputs, plan, None)

    def rank() -> Any:
        net = dist.tensor_parallel(make(), plan)
        net.to(dtype="float64")
        report = dist.explain_tensor_parallel(net, *map(meta.array, inputs))
        return gradients(make, inputs, plan, "tp"), [e.collective for e in report.exchanges]

    found = dist.simulate({"tp": ranks}).run(rank)
    for (other, _), _ in found:
        np.testing.assert_allclose(other, y, **TIGHT)
    whole = joined([g for (_, g), _ in found])
    for key, (value, _) in alone.items():
        np.testing.assert_allclose(whole[key], value, **TIGHT, err_msg=key)
    assert found[0][1].count("gather_from") == gathers, found[0][1]


@pytest.mark.parametrize("seed", range(8))
def test_reshapes_of_parts_are_parts_of_reshapes(seed: int) -> None:
    """Random shapes of 2 * 2 * 2 * 3 * 3 elements: where a cut is said to stay one, it does."""
    draws, ranks = np.random.default_rng(seed), 2

    def shape() -> tuple[int, ...]:
        found = [1] * int(draws.integers(1, 5))
        for factor in (2, 2, 2, 3, 3):
            found[int(draws.integers(len(found)))] *= factor
        return tuple(found)

    stays = 0
    for _ in range(40):
        before, after = shape(), shape()
        whole = torch.arange(72).reshape(before)
        axis, pieces = int(draws.integers(len(before))), int(draws.choice([1, 1, 2, 3]))
        cut = ShardAxis(axis, pieces)
        if not cut.fits(before, ranks):
            continue
        found = through_reshape(before, cut, after, ranks)
        if found is None:
            continue
        stays += 1
        for place in range(ranks):
            own = Split("tp", ranks, cut.axis, cut.joined).part(whole, place)
            wanted = Split("tp", ranks, found.axis, found.joined).part(whole.reshape(after), place)
            assert torch.equal(own.reshape(found.local(after, ranks)), wanted), (before, cut, after)
    assert stays


class Counts(meta.Model):
    """Writes to an array of its own."""

    def build(self, write: Callable[..., Any]) -> None:
        self.count, self.write = meta.zeros((2, 4)), write

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return what was there before, and what is there now."""
        before = self.count * 1
        self.write(self.count, x)
        return before, self.count * 1


def test_parts_are_written_in_place() -> None:
    def rank() -> Any:
        net = dist.tensor_parallel(Counts(op.assign), {"count": 1})
        first = net(meta.ones((2, 4)) * 2)
        again = net(meta.ones((2, 4)) * 3)
        return [y.numpy().mean() for y in (*first, *again)], net.count.shape

    assert dist.simulate({"tp": 2}).run(rank) == [([0, 2, 2, 3], (2, 2))] * 2


KINDS: dict[str, Any] = {
    "int8": {},
    "int8 in groups": {"group": 32, "symmetric": False},
    "int4": {"group": 32},
    "float8": {},
}


@pytest.mark.parametrize("plan", [{"0": "column", "1": "row"}, {"0": "row", "1": "column"}])
@pytest.mark.parametrize("kind", KINDS)
def test_quantized_layers(kind: str, plan: dict[str, str]) -> None:
    def run(over: str | None) -> Any:
        meta.random.seed(0)
        net = meta.model.Sequential(meta.model.Linear(64, 128), meta.model.Linear(128, 64))
        meta.model.quantize(net, kind.split()[0], **KINDS[kind])
        size = sum(layer.weight.nbytes for layer in net)
        if over is not None:
            dist.tensor_parallel(net, plan)
        x = meta.array(np.random.default_rng(0).standard_normal((3, 64)).astype("float32"))
        found = sum(layer.weight.nbytes for layer in net)
        report = dist.explain_tensor_parallel(net, x) if over is not None else None
        return net(x).numpy(), found / size, report

    alone, _, _ = run(None)
    for y, share, report in dist.simulate({"tp": 2}).run(run, "tp"):
        np.testing.assert_allclose(y, alone, rtol=1e-4, atol=1e-5)
        assert share == 0.5
        assert [
            e for e in report.exchanges if "int" in str(e.type) or "float8" in str(e.type)
        ] == []


def test_what_cannot_be_written_for_parts() -> None:
    def writes() -> meta.Model:
        first = meta.array([[0]])
        return Counts(lambda count, x: op.assign_at(count, first, x[:1]))

    class Exchanges(Applied):
        @meta.model.trace
        def forward(self, x: Any) -> Any:
            return op.all_reduce(op.matmul(x, self.w), "tp", 2)

    def rank(model: Callable[[], meta.Model], plan: Any, shape: tuple[int, ...]) -> Any:
        return dist.tensor_parallel(model(), plan)(meta.ones(shape))

    for model, plan, shape, match in (
        (writes, {"count": 1}, (2, 4), "assign_at writes to an array of which each rank has a"),
        (
            partial(Exchanges, None, [(4, 4)]),
            {"w": 0},
            (2, 4),
            "calls all_reduce along 'tp' itself",
        ),
    ):
        with pytest.raises(DistributedError, match=match):
            dist.simulate({"tp": 2}).run(rank, model, plan, shape)
