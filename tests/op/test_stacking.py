"""Functions that stack, turn and compare arrays: NumPy's or torch's results, torch's gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import MetaError
from meta.model import trace

G = torch.Generator().manual_seed(0)


def t(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=G, dtype=torch.float64)


V, W, M, N, C = t(3), t(3), t(2, 3), t(4, 3), t(2, 3, 2)
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]
CASES: dict[str, Case] = {
    **{
        f"{name} of {len(a.shape)} axes": (
            lambda *x, name=name: getattr(meta, name)(x),
            lambda *x, name=name: getattr(torch, name)(x),
            (a, a + 1),
        )
        for name in ("hstack", "vstack", "dstack")
        for a in (t(), V, M, C, t(0))
    },
    **{
        f"rot90 by {k}": (
            lambda x, k=k: meta.rot90(x, k, (1, 2)),
            lambda x, k=k: torch.rot90(x, k, (1, 2)),
            (C,),
        )
        for k in (-1, 0, 1, 2, 3)
    },
    "diag of a vector": (lambda x: meta.diag(x, -1), lambda x: torch.diag(x, -1), (V,)),
    "diag of a matrix": (lambda x: meta.diag(x, 1), lambda x: torch.diag(x, 1), (M,)),
    **{
        f"cdist {p}": (
            lambda x, y, p=p: meta.cdist(x, y, p),
            lambda x, y, p=p: torch.cdist(x, y, p),
            (M, N),
        )
        for p in (0, 1, 2, 3.5, float("inf"))
    },
    "pairwise_distance": (
        lambda x, y: meta.pairwise_distance(x, y, 3.0),
        lambda x, y: torch.pairwise_distance(x, y, 3.0),
        (M, M.flip(0)),
    ),
    "cosine_similarity": (
        lambda x, y: meta.cosine_similarity(x, y),
        lambda x, y: torch.cosine_similarity(x, y),
        (M, M.flip(0)),
    ),
    "normalize": (
        lambda x: meta.normalize(x, 3.0, 0),
        lambda x: torch.nn.functional.normalize(x, 3.0, 0),
        (M,),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    ours, theirs, tensors = CASES[name]
    own = [meta.array(x.numpy().copy()) for x in tensors]
    their = [x.clone().requires_grad_() for x in tensors]
    for x in own:
        x.requires_grad = True
    found, wanted = ours(*own), theirs(*their)
    assert found.shape == tuple(wanted.shape)
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-10)
    meta.sum(found * found).backward()
    (wanted * wanted).sum().backward()
    for a, b in zip(own, their, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-12)
    plain = [meta.array(x.numpy().astype("float32")) for x in tensors]
    traced = trace(ours)
    for run in (traced, meta.vm.compile(traced, *plain)):
        np.testing.assert_allclose(run(*plain).numpy(), wanted.detach().numpy(), rtol=1e-4)


@pytest.mark.parametrize(("extent", "sections"), [(7, 3), (2, 4), (6, 3), (0, 2), (5, 1)])
def test_array_split_is_numpys(extent: int, sections: int) -> None:
    x = np.arange(2 * extent).reshape(2, extent)
    found = meta.array_split(x, sections, axis=1)
    wanted = np.array_split(x, sections, axis=1)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)


def test_what_makes_no_sense_is_refused() -> None:
    for call, text in (
        (lambda: meta.hstack(np.ones(3)), "as a sequence"),
        (lambda: meta.diag(np.ones((1, 1, 1))), "no vector and no matrix"),
        (lambda: meta.rot90(np.ones((2, 2)), 1, (0, -2)), "two axes"),
        (lambda: meta.array_split(np.ones(3), 0), "cannot be split"),
        (lambda: meta.cdist(np.ones((2, 3)), np.ones((2, 4))), "x1 and x2 differ"),
        (lambda: meta.cdist(np.ones((2, 3), int), np.ones((2, 3), int)), "floating point"),
        (lambda: meta.normalize(np.ones((2, 3)), -1), "p is no norm"),
    ):
        with pytest.raises(MetaError, match=text):
            call()
