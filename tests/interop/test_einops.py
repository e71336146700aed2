"""einops on arrays and in traced models, as on NumPy's arrays and torch's tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import einops
import numpy as np
import pytest
import torch
from einops import pack, rearrange, reduce, repeat, unpack

import meta
from meta.ir.types import SymbolicDim, TensorType
from meta.model import trace

X = np.arange(48, dtype=np.float32).reshape(2, 4, 6) % 11 - 3
FORMS: dict[str, Callable[[Any], Any]] = {
    "transpose": lambda x: rearrange(x, "b h w -> w b h"),
    "two axes": lambda x: rearrange(x[0], "h w -> w h"),
    "split": lambda x: rearrange(x, "b (h p) (w q) -> (b h w) (p q)", p=2, q=3),
    "merge": lambda x: rearrange(x, "b ... -> b (...)"),
    "squeeze": lambda x: rearrange(x, "b h w -> b 1 (h w)"),
    "list": lambda x: rearrange([x, x * 2], "k b h w -> b (k h) w"),
    "sum": lambda x: reduce(x, "b h w -> b", "sum"),
    "mean": lambda x: reduce(x, "b (h 2) w -> h w", "mean"),
    "max": lambda x: reduce(x, "b h w -> b () w", "max"),
    "min of all": lambda x: reduce(x, "b h w ->", "min"),
    "prod": lambda x: reduce(x, "b h (w 3) -> b h w", "prod"),
    "any": lambda x: reduce(x > 5, "b h w -> h", "any"),
    "a function": lambda x: reduce(x, "b h w -> b h", lambda t, axes: t.sum(axes)),
    "repeat": lambda x: repeat(x, "b h w -> b (h 2) k w", k=3),
    "einsum": lambda x: einops.einsum(x, x, "b h w, b k w -> b h k"),
    "pack": lambda x: pack([x, x[:, 0]], "b * w")[0],
    "unpack": lambda x: unpack(x, [[1], [3]], "b * w")[1],
}


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_as_of_numpy(name: str) -> None:
    form, x = FORMS[name], meta.array(X)
    expected = form(X)
    found = form(x)
    assert type(found) is meta.ndarray
    close(found, expected)
    close(trace(form)(x), expected)
    close(meta.vm.compile(trace(form), x)(x), expected)


def test_a_gradient_passes() -> None:
    x = meta.array(X)
    x.requires_grad = True
    t = torch.tensor(X, requires_grad=True)
    for value in (x, t):
        (
            reduce(rearrange(value, "b h w -> h (b w)"), "h (k 2) -> h k", "mean") ** 3
        ).sum().backward()
    close(x.grad, t.grad)


def test_a_dynamic_extent() -> None:
    @trace
    def heads(x: Any) -> Any:
        return rearrange(x, "n (h d) -> h n d", h=3)

    program = meta.vm.compile(heads, TensorType((SymbolicDim("n"), 6), "float32"))
    for n in (2, 5):
        x = np.arange(6.0 * n, dtype=np.float32).reshape(n, 6)
        close(program(meta.array(x)), rearrange(x, "n (h d) -> h n d", h=3))


def test_other_functions() -> None:
    x = meta.array(X)
    assert einops.parse_shape(x, "b _ w") == {"b": 2, "w": 6}
    close(einops.asnumpy(x), X)
    with pytest.raises(einops.EinopsError, match="Shape mismatch"):
        rearrange(x, "b (h p) w -> b h p w", p=3)


@pytest.mark.parametrize("first", ["import einops, meta", "import meta, einops"])
def test_either_is_imported_first(first: str) -> None:
    code = (
        f"{first}; x = einops.rearrange(meta.ones((2, 3)), 'a b -> b a'); assert x.shape == (3, 2)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_einops_is_not_imported() -> None:
    code = "import sys, meta; assert 'einops' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
