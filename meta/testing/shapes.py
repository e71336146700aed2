"""Samples of other shapes, made of a case's own: those at which kernels go wrong.

Without an axis indexing gives views, with an extent of 0 there is nothing to do, with one of 1
strides mean nothing, and 17 and 33 elements are by one more than vectors of 16 and 32 lanes. One
extent of a sample is changed in all tensors that have it, or all tensors get another shape if they
have the same. What the operator's type function refuses is left out, and so are samples with given
numbers, which may be a shape, or sorted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from meta.base.errors import MetaError
from meta.base.registry import OPERATORS
from meta.ir.types import TensorType, TupleType
from meta.op.core import map_tensors, tree
from meta.op.core.call import array_type
from meta.runtime.ndarray import as_array
from meta.testing.case import OpCase, Sample, Spec

Shape = tuple[int, ...]
SHAPES: tuple[Shape, ...] = ((), (0,), (1,), (5,), (17,), (33,), (1, 1), (3, 17))
EXTENTS: tuple[Shape, ...] = ((), (0,), (1,), (17,))
"""What one extent is changed to: no axis, or an axis of another extent."""
MOST_ELEMENTS = 1 << 16
"""A larger tensor takes long and shows no more: a kernel of 17 x 17 x 17 over as many channels."""


def reshaped(case: OpCase) -> Iterator[Sample]:
    """Iterate over samples of other shapes: `SHAPES` for an operator whose arguments and result
    have the same shape, whatever it is, and `EXTENTS` in the place of each extent for others.
    """
    for one in case.samples:
        shapes = _shapes(case, one)
        specs = tree.flatten((one.args, one.kwargs), lambda v: isinstance(v, Spec))[0]
        if not shapes or any(0 in shape for shape in shapes) or any(s.numbers for s in specs):
            continue
        if len(shapes) == 1 and _results(case, one) == shapes:
            for shape in SHAPES:

                def given(_: Shape, shape: Shape = shape) -> Shape:
                    return shape

                made = with_shapes(one, given)
                if shape not in shapes and _results(case, made) == {shape}:
                    yield made
        else:
            yield from _substituted(case, one, sorted({e for s in shapes for e in s}))
        return


def inferred(case: OpCase, one: Sample, dtype: str) -> Any:
    """Return the type of a sample's result, or its value where that is known now."""
    return OPERATORS[case.op].infer(types_of(case, one, dtype))


def types_of(case: OpCase, one: Sample, dtype: str) -> tuple[Any, ...]:
    """Return the canonical arguments of a sample, types in the place of tensors."""
    op = OPERATORS[case.op]
    bound = op.schema.bind(*one.make(dtype), as_array)
    return map_tensors(op, bound, lambda a: array_type(a.key))


def _substituted(case: OpCase, one: Sample, extents: list[int]) -> Iterator[Sample]:
    for old in extents:
        for new in EXTENTS:
            if new == (old,):
                continue

            def place(shape: Shape, old: int = old, new: Shape = new) -> Shape:
                return tuple(e for extent in shape for e in (new if extent == old else (extent,)))

            made = with_shapes(one, place)
            most = max((math.prod(shape) for shape in _shapes(case, made)), default=0)
            if most <= MOST_ELEMENTS and _results(case, made) is not None:
                yield made


def _shapes(case: OpCase, one: Sample) -> set[Shape]:
    return {tuple(t.shape) for t in tree.flatten(one.make(_dtype(case)))[0]}


def _results(case: OpCase, one: Sample) -> set[Shape] | None:
    """Return the shapes of the results; None if a sample is refused or types do not tell."""
    try:
        result = inferred(case, one, _dtype(case))
    except MetaError:
        return None
    types = result.fields if isinstance(result, TupleType) else (result,)
    known = [t for t in types if isinstance(t, TensorType) and t.is_static]
    return {t.static_shape for t in known} if len(known) == len(types) else None


def _dtype(case: OpCase) -> str:
    return case.dtypes[0] if case.dtypes else "float32"


def with_shapes(one: Sample, place: Callable[[Shape], Shape]) -> Sample:
    """Return a sample whose tensors have other shapes: ``place(shape)`` in place of each.

    Integers, which may be places, are 0 if one of the tensors has fewer elements than before.
    """
    before = [tuple(t.shape) for t in tree.flatten(one.make("float32"))[0]]
    fewer = any(math.prod(place(shape)) < math.prod(shape) for shape in before)

    def changed(value: Any) -> Any:
        if isinstance(value, Spec):
            return _reshaped(value, place, fewer)
        if isinstance(value, tuple | list) and any(isinstance(v, Spec) for v in value):
            return tuple(map(changed, value))
        return value

    args = tuple(map(changed, one.args))
    kwargs = {name: changed(value) for name, value in one.kwargs.items()}
    return Sample(args, kwargs, reshaped=True)


def _reshaped(spec: Spec, place: Callable[[Shape], Shape], fewer: bool) -> Spec:
    """Return a spec with the values of another, repeated or cut to a shape."""

    def make(dtype: str, generator: torch.Generator) -> torch.Tensor:
        values = spec.make(dtype, generator)
        shape = place(tuple(values.shape))
        places = torch.arange(torch.Size(shape).numel()) % values.numel()
        found = values.reshape(-1)[places].reshape(shape)
        return found * 0 if fewer and not values.dtype.is_floating_point else found

    shape = place(tuple(spec.make("float32", torch.Generator()).shape))
    return replace(spec, make=make, text=f"{spec} as {list(shape)}", numbers=False)
