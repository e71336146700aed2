"""Runs one sample of an entry on both sides and compares: results, then gradients.

Raises `Declined` or TypeInferError where the sample is outside of what `meta` declares, and
AssertionError where `meta` gives something else than torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from meta.base.dtype import FROM_TORCH
from meta.op.core import tree
from meta.op.core.handler import Default
from meta.runtime.ndarray import ndarray
from tools.torch_samples.decline import decline_if
from tools.torch_samples.entries import of_torch

# (rtol, atol): both sides round, each in its own order.
TOLERANCE = {torch.float32: (1e-4, 2e-5), torch.float64: (1e-9, 1e-10)}
GRADIENT_TOLERANCE = {torch.float32: (1e-3, 1e-4), torch.float64: (1e-7, 1e-8)}


class Calls:
    """Counts the operators that are called eagerly in a block."""

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count in this block. The handler stays the default one, as adapters may read values."""
        run = Default.handler

        def counting(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self.number += 1
            return run(op, args, kwargs)

        Default.handler = counting
        try:
            yield
        finally:
            Default.handler = run


def check_forward(entry: Any, adapter: Callable[..., Any], sample: Any, calls: Calls) -> None:
    """The adapter's results have torch's shapes, dtypes and values."""
    leaves, structure = _taken_apart(sample)
    for leaf in leaves:
        decline_if(leaf.dtype not in FROM_TORCH, f"a tensor of {leaf.dtype}")
        decline_if(leaf.layout is not torch.strided, f"a tensor of layout {leaf.layout}")
    with of_torch(), torch.no_grad():
        expected = _call(entry.op, structure, [leaf.clone() for leaf in leaves])
    for leaf in tree.flatten(expected)[0]:
        decline_if(leaf.dtype not in FROM_TORCH, f"a result of {leaf.dtype}")
    with calls.counted():
        found = _call(adapter, structure, [ndarray(leaf.clone()) for leaf in leaves])
    _compare(found, expected, TOLERANCE, "result")


def check_gradient(entry: Any, adapter: Callable[..., Any], sample: Any) -> bool:
    """The gradients of all floating point results by all floating point arguments are torch's.

    Returns whether there was one to compare.
    """
    leaves, structure = _taken_apart(sample)
    theirs, results = _recorded(entry, sample)
    differentiable = [i for i, r in enumerate(results) if r.requires_grad]
    if not differentiable:
        return False
    outputs = [results[i] for i in differentiable]
    seeds = _seeds(outputs)
    asked = [i for i, leaf in enumerate(theirs) if leaf.requires_grad]
    expected = _backward(outputs, [theirs[i] for i in asked], seeds)
    if expected is None:
        return False
    ours = [ndarray(leaf.clone()) for leaf in leaves]
    given = [(i, e) for i, e in zip(asked, expected, strict=True) if e is not None]
    for i, _ in given:
        ours[i].requires_grad = True
    found = tree.flatten(_call(adapter, structure, ours))[0]
    for i, seed in zip(differentiable, seeds, strict=True):
        if found[i].requires_grad:
            found[i].backward(ndarray(seed))
    for i, e in given:
        gradient = ours[i].grad
        # An argument that has no influence has, to one side, no gradient, and zeros to the other.
        ours_or_zeros = torch.zeros_like(e) if gradient is None else gradient.torch()
        _compare(ours_or_zeros, e, GRADIENT_TOLERANCE, f"gradient of tensor {i}")
    return bool(given)


def _recorded(entry: Any, sample: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return arguments and results of torch's own run, recorded for gradients.

    By all floating point arguments, or, where torch refuses one of these, by those that the sample
    marks.
    """
    marked = [leaf.requires_grad for leaf in tree.flatten(_arguments(sample))[0]]
    leaves, structure = _taken_apart(sample)
    wanted = [leaf.dtype.is_floating_point for leaf in leaves]
    for asked in (wanted, marked):
        theirs = [leaf.clone().requires_grad_(a) for leaf, a in zip(leaves, asked, strict=True)]
        try:
            with of_torch():
                return theirs, tree.flatten(_call(entry.op, structure, theirs))[0]
        except RuntimeError as error:
            if "not differentiable with respect to argument" not in str(error) or asked is marked:
                raise
    raise AssertionError("unreachable")


def _arguments(sample: Any) -> Any:
    return (sample.input, *sample.args), sample.kwargs


def _taken_apart(sample: Any) -> tuple[list[torch.Tensor], Any]:
    leaves, structure = tree.flatten(_arguments(sample))
    return [leaf.detach() for leaf in leaves], structure


def _call(function: Callable[..., Any], structure: Any, leaves: list[Any]) -> Any:
    args, kwargs = tree.unflatten(structure, leaves)
    return function(*args, **kwargs)


def _backward(results: list[Any], arguments: list[Any], seeds: list[Any]) -> Any:
    """Return torch's gradients, None where torch says that it has none."""
    try:
        with of_torch():
            return torch.autograd.grad(results, arguments, seeds, allow_unused=True)
    except RuntimeError as error:
        if "not implemented" in str(error):
            return None
        raise


def _seeds(results: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.empty(r.shape, dtype=r.dtype).uniform_(-1, 1, generator=generator) for r in results
    ]


def _compare(found: Any, expected: Any, tolerance: dict[Any, Any], what: str) -> None:
    """Raise AssertionError unless both are alike in structure, shape, dtype and values."""
    if isinstance(expected, tuple | list):
        assert isinstance(found, tuple | list) and len(found) == len(expected), (
            f"{what}: {len(expected)} expected, found {found!r}"
        )
        for i, (f, e) in enumerate(zip(found, expected, strict=True)):
            _compare(f, e, tolerance, f"{what} {i}")
        return
    if not isinstance(expected, torch.Tensor):
        assert found == expected, f"{what}: {expected!r} expected, found {found!r}"
        return
    value = found.torch() if isinstance(found, ndarray) else found
    assert isinstance(value, torch.Tensor), f"{what}: a tensor expected, found {found!r}"
    assert value.dtype == expected.dtype, f"{what}: {expected.dtype} expected, found {value.dtype}"
    assert value.shape == expected.shape, (
        f"{what}: shape {tuple(expected.shape)} expected, found {tuple(value.shape)}"
    )
    rtol, atol = tolerance.get(expected.dtype, (0, 0))
    torch.testing.assert_close(
        value,
        expected.resolve_neg(),
        rtol=rtol,
        atol=atol,
        equal_nan=True,
        msg=lambda message: f"{what}: {message}",
    )
