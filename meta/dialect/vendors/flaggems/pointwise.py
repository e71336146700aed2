"""``pointwise_dynamic``: a function of tensors around a function of elements.

The kernel is the one of `meta.dialect.triton.pointwise`, for tensors that lie in memory in any way;
elements keep their dtype, results have the dtype that torch's rules of promotion give.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl

from meta.base.errors import ArgumentError, RegistrationError
from meta.dialect.triton.pointwise import Layout, Shape, collapsed, kernel
from meta.dialect.vendors.flaggems.buffers import StridedBuffer
from meta.dialect.vendors.flaggems.codegen import CodeGenConfig, get_codegen_config
from meta.dialect.vendors.flaggems.shapes import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    broadcast_shapes,
    broadcasted_stride,
    type_promotion,
)

__all__ = ["ComplexMode", "PointwiseDynamicFunction", "pointwise_dynamic"]
BLOCK, INT32 = 1024, 2**31


class ComplexMode(enum.Enum):
    """How FlagGems computes complex numbers with a function of real ones."""

    NONE = 0
    ELEMENTWISE = 1
    CROSS = 2


class PointwiseDynamicFunction:
    """A function of elements on tensors that are broadcast.

    Parameters
    ----------
    function: of ``triton.jit``. is_tensor: which arguments are tensors. promotion: of each result,
    the numbers of the arguments that decide its dtype, and how torch promotes them. config: how
    large a grid may be.
    """

    def __init__(
        self,
        function: Any,
        is_tensor: Sequence[bool],
        promotion: Sequence[tuple[Any, ...]],
        config: CodeGenConfig | None,
    ) -> None:
        self.function, self.is_tensor, self.config = function, tuple(is_tensor), config
        self.promotion = [
            (indices, ELEMENTWISE_TYPE_PROMOTION_KIND[how]) for *indices, how in promotion
        ]
        self.__name__ = function.__name__

    def register_complex(self, *_: Any, **__: Any) -> PointwiseDynamicFunction:
        """Return this: calls with complex tensors are declined before they come here."""
        return self

    def __call__(self, *args: Any, **results: Any) -> Any:
        """Compute; ``out0=`` and so on are tensors for results."""
        if len(args) != len(self.is_tensor):
            raise ArgumentError(
                f"{self.__name__} takes {len(self.is_tensor)} arguments, by position",
                found=len(args),
            )
        tensors = [a for a, is_tensor in zip(args, self.is_tensor, strict=True) if is_tensor]
        wrong = [t for t in tensors if not isinstance(t, torch.Tensor | StridedBuffer)]
        if wrong or any(t.dtype.is_complex for t in tensors):
            raise ArgumentError(
                f"{self.__name__} is called with arguments that are no real tensors",
                expected=f"tensors and others as {self.is_tensor}",
                found=[type(a).__name__ for a in args],
            )
        shape = broadcast_shapes([tuple(t.shape) for t in tensors])
        outs = []
        for i, (indices, how) in enumerate(self.promotion):
            out = results.get(f"out{i}")
            if out is None:
                _, dtype = type_promotion(*(args[j] for j in indices), type_promotion=how)
                out = torch.empty(shape, dtype=dtype, device=tensors[0].device)
            elif tuple(out.shape) != shape:
                raise ArgumentError(
                    f"out{i} of {self.__name__} has another shape than the arguments",
                    expected=shape,
                    found=tuple(out.shape),
                )
            outs.append(out)
        if prod(shape):
            self._launch(args, tensors, shape, outs)
        found = [o.unwrap() if isinstance(o, StridedBuffer) else o for o in outs]
        return found[0] if len(found) == 1 else tuple(found)

    def instantiate(self, ndim: int) -> Callable[..., Any]:
        """Return the function for tensors of so many axes, which is the same one."""
        return self

    def _launch(
        self, args: Sequence[Any], tensors: Sequence[Any], shape: tuple[int, ...], outs: list[Any]
    ) -> None:
        strides = [broadcasted_stride(tuple(t.shape), t.stride(), shape) for t in tensors]
        layout = collapsed(shape, [*strides, *(o.stride() for o in outs)])
        steps = tuple(
            tuple("0" if s == 0 else "1" if s == 1 else "s" for s in row) for row in layout.strides
        )
        count = len(tensors)
        kinds, numbers, constants = self._arguments(args)
        config = self.config or get_codegen_config()
        blocks, most = triton.cdiv(prod(shape), BLOCK), config.max_grid_size[0]
        form = Shape(
            len(layout.extents), steps[:count], kinds, (False,) * count, len(outs),
            len(outs) > 1, steps[count:], blocks > most,
        )  # fmt: skip
        strided = [
            stride
            for row in layout.strides
            for stride in row
            if stride not in (0, 1)
        ]  # fmt: skip
        kernel(self.function, form).jit[(min(blocks, most),)](
            *(t.pointer if isinstance(t, StridedBuffer) else t for t in (*tensors, *outs)),
            *numbers, prod(shape), *layout.extents[1:], *strided, *constants,
            INDEX=tl.int64 if _reach(layout) >= INT32 else tl.int32, BLOCK=BLOCK,
        )  # fmt: skip

    def _arguments(self, args: Sequence[Any]) -> tuple[tuple[str, ...], list[Any], list[Any]]:
        """Return what stands for each argument, the run-time numbers, and the constants."""
        kinds: list[str] = []
        numbers: list[Any] = []
        constants: list[Any] = []
        for value, is_tensor, parameter in zip(
            args, self.is_tensor, self.function.params, strict=True
        ):
            if is_tensor:
                kinds.append(f"i{sum(k[0] == 'i' for k in kinds)}")
            elif parameter.is_constexpr or not isinstance(value, int | float):
                kinds.append(f"c{len(constants)}")
                constants.append(value)
            else:
                kinds.append(f"n{len(numbers)}")
                numbers.append(value)
        return tuple(kinds), numbers, constants


def _reach(layout: Layout) -> int:
    rows = [sum(n * abs(s) for n, s in zip(layout.extents, r, strict=True)) for r in layout.strides]
    return max(prod(layout.extents) + BLOCK, *rows)


def pointwise_dynamic(
    function: Any = None,
    *,
    num_inputs: int | None = None,
    is_tensor: Sequence[bool] | None = None,
    dtypes: Sequence[type | None] | None = None,
    num_outputs: int | None = None,
    promotion_methods: Sequence[tuple[Any, ...]] | None = None,
    config: CodeGenConfig | None = None,
) -> Any:
    """Return a decorator of a function of elements.

    Parameters
    ----------
    num_inputs: how many arguments it has, by default as many as the function. is_tensor: which are
    tensors, by default all, or those whose type in ``dtypes`` is None. promotion_methods: for each
    result the numbers of arguments and the name of one of torch's kinds of promotion, such as
    ``(0, 1, "DEFAULT")``. Raises RegistrationError without them.
    """

    def decorate(inner: Any) -> PointwiseDynamicFunction:
        if not promotion_methods or len(promotion_methods) != (
            num_outputs or len(promotion_methods)
        ):
            raise RegistrationError(
                f"{inner.__name__} does not state how the dtype of each result is promoted",
                expected='promotion_methods=[(0, 1, "DEFAULT")], say',
            )
        tensors = is_tensor
        if tensors is None and dtypes is not None:
            tensors = [dtype is None for dtype in dtypes]
        if tensors is None:
            tensors = [True] * (num_inputs or len(inner.arg_names))
        return PointwiseDynamicFunction(inner, tensors, promotion_methods, config)

    return decorate if function is None else decorate(function)
