"""Pooling to a result without elements, and its gradient, as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
import meta.frontend.dynamo
from meta.model import trace

IMAGE = (6, 5, 4)
SHAPES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "no image": lambda n: (0, 3, *IMAGE[:n]),
    "no channel": lambda n: (2, 0, *IMAGE[:n]),
    "no row": lambda n: (2, 3, 0, *IMAGE[1:n]),
    "whole": lambda n: (2, 3, *IMAGE[:n]),
}
POOLS: dict[str, Callable[[Any, int, Any], Any]] = {
    "max": lambda of, n, x: getattr(of, f"max_pool{n}d")(x, 2, 2),
    "avg": lambda of, n, x: getattr(of, f"avg_pool{n}d")(x, 2, 2),
    "max, ceil": lambda of, n, x: getattr(of, f"max_pool{n}d")(x, 3, 2, 1, ceil_mode=True),
    "avg, ceil": lambda of, n, x: getattr(of, f"avg_pool{n}d")(x, 3, 2, 1, ceil_mode=True),
    "adaptive max to 0": lambda of, n, x: getattr(of, f"adaptive_max_pool{n}d")(x, (0,) * n),
    "adaptive avg to 0": lambda of, n, x: getattr(of, f"adaptive_avg_pool{n}d")(x, (0,) * n),
    "adaptive max to 2": lambda of, n, x: getattr(of, f"adaptive_max_pool{n}d")(x, (2,) * n),
    "adaptive avg to 2": lambda of, n, x: getattr(of, f"adaptive_avg_pool{n}d")(x, (2,) * n),
}


def _in_torch() -> list[Any]:
    """Return what PyTorch gives an empty result for."""
    found = []
    for name, pool in POOLS.items():
        for kind, shape in SHAPES.items():
            for n in (1, 2, 3):
                x = torch.randn(shape(n))
                try:
                    y = pool(F, n, x)
                except (RuntimeError, IndexError):
                    continue
                if not y.numel():
                    found.append(pytest.param(pool, n, x, y.shape, id=f"{name} {kind} {n}d"))
    return found


EMPTY = _in_torch()


def test_there_are_such_calls() -> None:
    assert len(EMPTY) >= 30


@pytest.mark.product
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize(("pool", "n", "x", "shape"), EMPTY)
def test_arrays(pool: Any, n: int, x: Any, shape: Any, dialect: str) -> None:
    array = meta.array(x)
    array.requires_grad = True
    with meta.dialect.prefer(dialect):
        found = pool(meta, n, array)
        found.backward(meta.zeros(found.shape))
        program = trace(lambda x: pool(meta, n, x))
        compiled = meta.vm.compile(program, meta.array(x))(meta.array(x))
    assert found.shape == compiled.shape == tuple(shape)
    assert torch.equal(array.grad.torch(), torch.zeros_like(x))


def test_torch_compile() -> None:
    flat = [one for one in EMPTY if one.values[1] == 2]

    def program(*images: torch.Tensor) -> list[torch.Tensor]:
        return [one.values[0](F, 2, x) for one, x in zip(flat, images, strict=True)]

    found = torch.compile(program, backend="meta")(*[one.values[2] for one in flat])
    assert [y.shape for y in found] == [one.values[3] for one in flat]


def test_gradients_of_torch_compile() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 2) + F.avg_pool2d(x, 2)

    x = torch.randn(0, 3, 6, 6, requires_grad=True)
    torch.compile(program, backend="meta")(x).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
