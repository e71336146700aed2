"""The check of second derivatives: the gradient of a gradient, against torch's double backward."""

from __future__ import annotations

from typing import Any

import torch

from meta.base.registry import OPERATORS
from meta.grad import grad
from meta.op.core import tree
from meta.runtime.ndarray import ndarray
from meta.testing.case import OpCase, Sample
from meta.testing.compare import check, first_float


def check_second_gradient(case: OpCase, one: Sample, device: str = "cpu") -> None:
    """The gradient of ``sum(v * gradient)`` by every argument and by dy is torch's, in float64.

    ``gradient`` is the case's gradient for a random dy, ``v`` random too. What does not depend on
    an argument has the gradient zero, whichever way a side says so.
    """
    leaves, structure = tree.flatten(one.make("float64"))
    floats = [i for i, t in enumerate(leaves) if t.dtype.is_floating_point]
    noise = torch.Generator().manual_seed(2)

    theirs = [t.clone().requires_grad_(i in floats) for i, t in enumerate(leaves)]
    args, kwargs = tree.unflatten(structure, theirs)
    their_y = first_float(case.oracle(*args, **kwargs))
    dy = _uniform(their_y.shape, noise)
    their_wrt = [*(theirs[i] for i in floats), dy.clone().requires_grad_()]
    their_first = torch.autograd.grad(
        their_y, their_wrt[:-1], their_wrt[-1], create_graph=True, allow_unused=True
    )
    vs = [_uniform(leaves[i].shape, noise) for i in floats]
    expected = _gradients(
        lambda ys, seeds: torch.autograd.grad(ys, their_wrt, seeds, allow_unused=True),
        [(g, v) for g, v in zip(their_first, vs, strict=True) if g is not None],
        their_wrt,
    )

    ours = [ndarray(t.clone().to(device)) for t in leaves]
    wrt = [*(ours[i] for i in floats), ndarray(dy.to(device))]
    for array in wrt:
        array.requires_grad = True
    args, kwargs = tree.unflatten(structure, ours)
    y = first_float(OPERATORS[case.op](*args, **kwargs))
    first = grad(y, wrt[:-1], wrt[-1], create_graph=True)
    found = _gradients(
        lambda ys, seeds: grad(ys, wrt, seeds),
        [(g, ndarray(v.to(device))) for g, v in zip(first, vs, strict=True)],
        wrt,
    )
    names = [*(f"argument {i}" for i in floats), "dy"]
    for name, x, a, b in zip(names, their_wrt, found, expected, strict=True):
        a, b = (torch.zeros_like(x) if g is None else g for g in (a, b))
        check(a, b, 1e-7, 1e-8, what=f"second gradient by {name} of {case.op}({one})")


def _gradients(gradient: Any, pairs: list[tuple[Any, Any]], wrt: list[Any]) -> Any:
    """Return the gradients of those first gradients that depend on anything."""
    live = [(g, v) for g, v in pairs if g.requires_grad]
    if not live:
        return [None] * len(wrt)
    ys, seeds = zip(*live, strict=True)
    return gradient(ys, seeds)


def _uniform(shape: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
