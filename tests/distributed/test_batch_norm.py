"""Batch normalisation over the ranks equals that of one rank with the joined batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta.base.errors import ArgumentError, DistributedError, TypeInferError
from meta.model import BatchNorm, Conv2d, ReLU, Sequential, sync_batch_norm
from meta.optim import with_sgd

ROWS, CHANNELS, STEPS = 12, 3, 3
SHAPES = {"rows": (ROWS, CHANNELS), "images": (ROWS, CHANNELS, 4, 5)}
SLOW = pytest.mark.slow


class OfHeld(meta.Model):
    """A layer of an array that is a parameter, so that its gradient is asked for."""

    def build(self, layer: meta.Model, x: Any) -> None:
        self.layer, self.x = layer, meta.model.parameter(x)

    @meta.model.trace
    def forward(self, factor: Any) -> Any:
        """Return the layer's result."""
        return self.layer(self.x * factor)


def layer(shape: tuple[int, ...], affine: bool, compiled: bool, count: int) -> list[Any]:
    """Return what a layer gives for this rank's rows: joined results and gradients of x, sums of
    the weights' gradients, and the running statistics after several steps.
    """
    rank = dist.rank("dp") if count > 1 else 0
    drawn = np.random.default_rng(0)
    norm = BatchNorm(CHANNELS, momentum=0.3, affine=affine, over="dp" if count > 1 else None)
    norm.to(dtype="float64")
    for parameter in norm.parameters():
        parameter.update(meta.array(drawn.standard_normal(CHANNELS)))
    own = slice(rank * ROWS // count, (rank + 1) * ROWS // count)
    net = OfHeld(norm, meta.array(2 + 3 * drawn.standard_normal(shape)[own]))
    dy, one = meta.array(drawn.standard_normal(shape)[own]), meta.array(1.0, "float64")
    step: Any = meta.model.value_and_grad(net)
    run = meta.vm.compile(step, dy, one) if compiled else step
    for _ in range(STEPS):
        y, gradients = run(dy, one)
    joined = [y, gradients.pop("x")]
    summed = list(gradients.values())
    if count > 1:
        joined = [dist.all_gather(a, "dp") for a in joined]
        summed = [dist.all_reduce(a, "dp") for a in summed]
    return [a.numpy() for a in (*joined, *summed, norm.running_mean, norm.running_var)]


@pytest.mark.product
@pytest.mark.parametrize(
    "compiled, count, affine",
    [
        *((False, count, affine) for count in (2, 3) for affine in (True, False)),
        (True, 2, True),
        *(pytest.param(True, n, a, marks=SLOW) for n, a in ((2, False), (3, True), (4, True))),
    ],
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_ranks_normalise_as_one(
    shape: tuple[int, ...], compiled: bool, count: int, affine: bool
) -> None:
    alone = layer(shape, affine, compiled, 1)
    for found in dist.simulate(count).run(layer, shape, affine, compiled, count):
        assert len(found) == len(alone) == (6 if affine else 4)
        for one, wanted in zip(found, alone, strict=True):
            np.testing.assert_allclose(one, wanted, 1e-10, 1e-12)


def test_ranks_with_different_numbers_of_rows() -> None:
    drawn = np.random.default_rng(5).standard_normal((7, CHANNELS))

    def rank(parts: list[slice]) -> list[Any]:
        place = dist.rank("dp")
        norm = BatchNorm(CHANNELS, over="dp" if len(parts) > 1 else None)
        norm.to(dtype="float64")
        x = meta.array(drawn[parts[place]])
        x.requires_grad = True
        (norm(x) * meta.array(np.cos(drawn[parts[place]]))).sum().backward()
        return [norm.running_mean.numpy(), norm.running_var.numpy(), x.grad.numpy()]

    (alone,) = dist.simulate(1).run(rank, [slice(0, 7)])
    found = dist.simulate(3).run(rank, [slice(0, 1), slice(1, 5), slice(5, 7)])
    for mean, var, _ in found:
        np.testing.assert_allclose([mean, var], alone[:2], 1e-10)
    np.testing.assert_allclose(np.concatenate([f[2] for f in found]), alone[2], 1e-10, 1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    """Half precision has statistics in float32, as one rank has."""

    def rank(count: int) -> Any:
        place = dist.rank("dp") if count > 1 else 0
        norm = BatchNorm(CHANNELS, over="dp" if count > 1 else None)
        drawn = np.random.default_rng(0).standard_normal((ROWS, CHANNELS)).astype("float32")
        own = slice(place * ROWS // count, (place + 1) * ROWS // count)
        y = norm(meta.array(drawn[own] + 5).astype(dtype))
        assert y.dtype == dtype
        return y.astype("float32").numpy(), norm.running_mean.numpy(), norm.running_var.numpy()

    alone, found = rank(1), dist.simulate(2).run(rank, 2)
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(np.concatenate([f[0] for f in found]), alone[0], tolerance, 1e-2)
    for one in found:
        np.testing.assert_allclose(one[1:], alone[1:], 1e-5)


def network() -> Sequential:
    meta.random.seed(1)
    net = Sequential(Conv2d(1, 4, 3, bias=False), BatchNorm(4), ReLU(), Conv2d(4, 1, 3))
    net.to(dtype="float64")
    return net


def trained(over: str | None) -> dict[str, Any]:
    """Train a network whose layers are synchronised; return its state."""
    rank, count = (0, 1) if over is None else (dist.rank(over), dist.size(over))
    net = network() if over is None else sync_batch_norm(network(), over)
    step = with_sgd(0.1, 0.9, over=over)(net)
    drawn = np.random.default_rng(3)
    for _ in range(STEPS):
        x = drawn.standard_normal((8, 1, 6, 6))
        own = slice(rank * 8 // count, (rank + 1) * 8 // count)
        step(meta.full((8 // count, 1, 2, 2), count / 8, "float64"), meta.array(x[own]))
    return {n: a.numpy() for n, a in step.state().items()}


def test_a_network_trains_as_on_one_rank() -> None:
    alone = trained(None)
    for state in dist.simulate(4).run(trained, "dp"):
        assert state.keys() == alone.keys()
        for name, value in state.items():
            np.testing.assert_allclose(value, alone[name], 1e-10, 1e-13, err_msg=name)


def test_local_by_default_and_none_in_infer_mode() -> None:
    def rank() -> Any:
        x = meta.array([[1.0], [3.0]]) * (1 + dist.rank("dp"))
        local, synchronised = BatchNorm(1, momentum=1.0), BatchNorm(1, momentum=1.0, over="dp")
        for norm in (local, synchronised):
            norm(x)
        before = synchronised.eval()(x).numpy()
        return local.running_mean.item(), synchronised.running_mean.item(), before.tolist()

    first, second = dist.simulate(2).run(rank)
    assert (first[0], second[0]) == (2.0, 4.0) and first[1] == second[1] == 3.0
    assert first[2] != second[2]


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="no BatchNorm in the model"):
        sync_batch_norm(meta.model.Linear(2, 1))
    with pytest.raises(DistributedError, match="no axis 'dp'"):
        sync_batch_norm(network())(meta.ones((2, 1, 6, 6), "float64"))
    with pytest.raises(TypeInferError, match="batches of known shapes"):
        dist.simulate(2).run(lambda: BatchNorm(2, over="dp")(meta.ones(2)))
