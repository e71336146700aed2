"""Calls of ATen's overloads as data, and what checks that their converters do as torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import meta
from meta.frontend.aten.graph import convert
from meta.frontend.aten.registry import overload_of
from meta.ir.dims import SymbolicDim
from meta.ir.types import TensorType
from meta.model.trace import trace
from tools.torch_samples.compare import TOLERANCE, compare, leaves_of, widened

NEW_IN = {
    "_foreach_clone": (2, 12),
    "_foreach_mm": (2, 13),
    "_upsample_lanczos2d_aa": (2, 12),
    "_upsample_lanczos2d_aa.vec": (2, 12),
    "_upsample_lanczos2d_aa_backward": (2, 12),
}
"""The first release of torch that has an overload, of those that some that we run with lack."""
GONE_FROM = {"cholesky": (2, 14), "qr": (2, 14)}
"""The first release of torch that has an overload no more."""


def is_there(name: str) -> bool:
    """Whether the installed torch has an overload, if any has."""
    version: Any = torch.__version__
    return not (name in NEW_IN and version < NEW_IN[name]) and not (
        name in GONE_FROM and version >= GONE_FROM[name]
    )


@dataclass(frozen=True)
class Call:
    """A call of an overload by torch's name of it. label: what is special about it."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def id(self) -> str:
        return f"{self.name} {self.label}".strip()


def call(name: str, *args: Any, label: str = "", **kwargs: Any) -> Call:
    """Return a `Call`; arguments are torch's."""
    return Call(name, args, kwargs, label)


def draws(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normal numbers, the same for a shape in every run."""
    seeded = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=seeded).to(dtype)


def ours(values: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, meta.array, values)


def of_torch(overload: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Return what torch makes of a call. From 2.15 on, overloads give the warnings that torch's
    functions give: of what is deprecated, in beta, or has no result that says something.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return overload(*args, **kwargs)


def check(one: Call, mask: list[bool] | None = None) -> None:
    """Compare a call with torch, eagerly and as a program, where base operators are given operands
    of one dtype only. mask: which of the results are asked for, all unless given; the others are
    None here, and anything in torch. Skips the test of an overload that this torch lacks.
    """
    if not is_there(one.name):
        pytest.skip(f"torch {torch.__version__} has no {one.name}")

    def asked(results: Any) -> Any:
        return (
            results if mask is None else tuple(r for r, m in zip(results, mask, strict=True) if m)
        )

    overload = overload_of(one.name)
    assert overload is not None
    expected = asked(of_torch(overload, *one.args, **one.kwargs))
    leaves, structure = pytree.tree_flatten((one.args, one.kwargs))
    tensors = [meta.array(x) for x in leaves if isinstance(x, torch.Tensor)]

    def run(arrays: Any) -> Any:
        given = iter(arrays)
        mixed = [next(given) if isinstance(x, torch.Tensor) else x for x in leaves]
        args, kwargs = pytree.tree_unflatten(mixed, structure)
        found = convert(overload, args, kwargs)
        if mask is not None:
            assert [f is not None for f in found] == mask
        return asked(tuple(found) if isinstance(found, list) else found)

    def exact() -> Any:
        args, kwargs = pytree.tree_map(widened, (one.args, one.kwargs))
        return asked(of_torch(overload, *args, **kwargs))

    with meta.strict_dtypes(), meta.dialect.prefer("torch"):
        compare(run(tensors), expected, TOLERANCE, "eagerly", exact)
        compare(trace(run)(tensors), expected, TOLERANCE, "as a program", exact)


def check_symbolic(
    name: str,
    arguments: Callable[..., tuple[Any, ...]],
    *tensors: torch.Tensor,
    extents: tuple[tuple[int | str, ...], ...] | None = None,
) -> None:
    """Compare a call with torch for extents that are unknown while converting.

    arguments: of the tensors, those of the call, which may be made of their extents. extents: of
    each tensor, numbers and names of those that are unknown; all are unless given.
    """
    overload = overload_of(name)
    assert overload is not None

    @trace
    def run(arrays: Any) -> Any:
        found = convert(overload, arguments(*arrays), {})
        return tuple(found) if isinstance(found, list) else found

    letters = iter("abcdefghijkl")
    arrays = [meta.array(x) for x in tensors]
    shapes = extents or tuple(tuple(next(letters) for _ in x.shape) for x in tensors)
    types = [
        TensorType(tuple(SymbolicDim(d) if isinstance(d, str) else d for d in shape), x.dtype)
        for shape, x in zip(shapes, arrays, strict=True)
    ]
    expected = of_torch(overload, *arguments(*tensors))
    with meta.strict_dtypes(), meta.dialect.prefer("torch"):
        found = meta.vm.compile(run, types)(arrays)
    for f, e in zip(leaves_of(found), leaves_of(expected), strict=True):
        compare(f, e, TOLERANCE, "of symbolic extents", lambda: None)
