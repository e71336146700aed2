"""`DecidedCall`: an operator's call whose types, device and kernel are known.

What is decided once and run many times: by eager calls of the same types, and by programs whose
extents are known when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from meta.base import config
from meta.base.errors import ArgumentError, IRError
from meta.dialect.core.dialect_op import DialectOp
from meta.dialect.core.dispatch import candidates, dispatch
from meta.dialect.core.openv import Kernel, OpEnv
from meta.dialect.core.preference import current as current_preference
from meta.ir import type_bytes
from meta.ir.types import TensorType
from meta.op.core.call import (
    CallValues,
    View,
    number_bounds,
    written_positions,
)
from meta.runtime import view_copies
from meta.runtime.allocate import allocator
from meta.runtime.array_key import ArrayKey, array_key
from meta.runtime.inplace_writes import require_writable
from meta.runtime.ndarray import ndarray
from meta.runtime.out_of_memory import require_room
from meta.runtime.placement import own_shard
from meta.vm.eager.kernel_contracts import first_run, is_of_others, with_contract_checked
from meta.vm.eager.launch_checks import checked

Maker = Callable[[], torch.Tensor]
_CONTRACTS = ("META_VERIFY", "META_CHECK_ACCESS")
KNOBS = (
    *_CONTRACTS,
    *("META_DEBUG_NANS", "META_CHECK_INDICES", "META_TRITON_INTERPRET", "META_TUNE"),
    "META_VENDOR",
)
"""What a call is decided with: part of its key where a block has changed a knob."""


class DecidedCall:
    """A decided call: torch tensors and numbers in, arrays out.

    Attributes
    ----------
    value: the result, where it is known now (`kernel` and `view_or_copy` are then None).
    kernel: the OpEnv's `run`. dialect: whose it is.
    view: whether the result is the first tensor seen with another shape; shard: or of which axis,
    with how many ranks, it is this rank's part.
    simple: for the usual case of exactly one compact result and nothing else written: what
    computes the result, and what the result is; else None.
    fresh: the kernel, if it serves all shapes of the arguments and no other dialect comes before.
    marked: the operator's name, if its results are copies to be marked
    (`meta.runtime.view_copies`). bounds: the ranges of the numbers that take an integer dtype, and
    a number among them that is not taken: values are not part of the key.
    capturable: whether a CUDA graph can hold the kernel.
    """

    __slots__ = (
        *("allocators", "bounds", "capturable", "compacts", "dialect", "fresh", "kernel", "key"),
        *("keys", "marked", "op_name", "places", "shard", "simple", "single", "value", "view"),
        "written",
    )

    def __init__(self, call: CallValues, strided: bool, marks: bool = True) -> None:
        self.value: Any = None
        self.kernel: Callable[..., Any] | None = None
        self.view = isinstance(call.out, View)
        self.shard = call.out.shard if isinstance(call.out, View) else None
        self.single = isinstance(call.out, TensorType | View)
        self.simple: tuple[Callable[..., Any], ArrayKey] | None = None
        self.fresh: Callable[..., Any] | None = None
        self.written = call.op.schema.written
        self.places = written_positions(call)  # of what is written, among the values
        self.op_name = call.op.name
        self.compacts, self.capturable = False, True
        self.bounds = tuple(number_bounds(call))
        self.dialect = ""
        if call.callee is None:
            self.value = call.out
            return
        # None: the extents are the data's to say, and are those of what the kernel returns.
        self.keys: tuple[ArrayKey | None, ...] = tuple(
            array_key(t.static_shape, t.dtype, call.out_device) if t.is_static else None
            for t in call.outputs
        )
        self.key = self.keys[0] if self.keys else None
        if self.view:
            return
        if None not in self.keys:
            require_room(sum(map(type_bytes, call.outputs)), call.out_device, call.op.name)
        env = dispatch(call, eager=True)
        if None in self.keys and not env.allocates:
            raise IRError(
                f"the kernel {env.dialect_op} fills a result whose extents only it can know",
                op=call.op.name,
                expected="a kernel that returns its results",
                found=call.out,
            )
        verifies = any(map(config.get, _CONTRACTS))
        others = is_of_others(env) and not verifies
        run = with_contract_checked(env, call) if verifies else env.run
        self.kernel = checked(run, env, call)
        self.compacts = strided and not env.strided
        self.capturable = not env.not_capturable
        if env.dialect_op is not None:
            self.dialect = env.dialect_op.dialect.name
        self.allocators = None if env.allocates else tuple(allocator(k) for k in self.keys if k)
        self.marked = call.op.name if marks and call.op.view_elsewhere else ""
        simple = isinstance(call.out, TensorType) and not (self.compacts or self.written)
        if self.key is not None and simple:
            self._simplify(env, call, fresh=not strided and not others)
        if others:
            decided = self.kernel, self.simple
            run = first_run(env, call, partial(self._settle, decided))
            self._settle((checked(run, env, call), None))

    def _simplify(self, env: OpEnv, call: CallValues, fresh: bool) -> None:
        """Set what is `simple`; ``fresh``: whether the kernel may be the one that serves all shapes
        of compact arguments.
        """
        assert self.key is not None
        if env.fresh is not None and self.kernel is env.run and fresh:
            self.simple = view_copies.with_marking(env.fresh, self.marked), self.key
            if env.dialect_op is not None and _is_first(env.dialect_op, call):
                self.fresh = self.simple[0]
        elif self.allocators is not None:
            assert self.kernel is not None
            filling = _filling(self.allocators[0], self.kernel)
            self.simple = view_copies.with_marking(filling, self.marked), self.key

    def _settle(self, decided: tuple[Kernel | None, Any], _: Kernel | None = None) -> None:
        self.kernel, self.simple = decided

    def in_shape(self, key: ArrayKey) -> DecidedCall:
        """Return the same call with arguments of other shapes; ``key`` is that of its result."""
        assert self.fresh is not None
        other = object.__new__(DecidedCall)
        other.value, other.view, other.single, other.compacts = None, False, True, False
        other.shard, other.marked = None, self.marked
        other.kernel = other.fresh = self.fresh
        other.simple, other.key, other.keys = (self.fresh, key), key, (key,)
        other.written, other.places, other.allocators = self.written, (), None
        other.op_name, other.bounds, other.dialect = self.op_name, self.bounds, self.dialect
        other.capturable = self.capturable
        return other

    def takes(self, values: Sequence[Any]) -> bool:
        """Whether the numbers among the values fit the dtypes that they take."""
        for place, low, high, refused in self.bounds:
            value = values[place]
            if not low <= value <= high or value != int(value) or value == refused:
                return False
        return True

    def run(self, values: Sequence[Any]) -> Any:
        """Run in the general case; ``values`` are in `OpEnv.run` order."""
        if self.view:
            assert self.key is not None
            if self.shard is not None:
                return ndarray(self._own_shard(values[0], *self.shard), self.key)
            found = view_copies.view_or_copy(values[0], self.key.shape, self.op_name)
            return ndarray(found, self.key if found.is_contiguous() else None)
        for place in self.places:
            view_copies.refuse_write(values[place], self.op_name)
            if not values[place].is_contiguous():
                require_writable(values[place], f"an argument of {self.op_name}")
        if self.compacts:
            given, values = (
                values,
                [v.contiguous() if isinstance(v, torch.Tensor) else v for v in values],
            )
        assert self.kernel is not None
        if self.allocators is None:
            outs = self.kernel(*values)
        else:
            outs = tuple(make() for make in self.allocators)
            self.kernel(*values, *outs)
        if self.compacts:
            for place in self.places:
                if given[place] is not values[place]:
                    given[place].copy_(values[place])
        view_copies.mark_all(outs, self.marked)
        if isinstance(outs, torch.Tensor):
            return ndarray(outs, self.key)
        results = tuple(map(ndarray, outs or (), self.keys))
        return results[0] if self.single else results

    def _own_shard(self, x: torch.Tensor, over: str, size: int) -> torch.Tensor:
        if not x.is_contiguous():
            raise ArgumentError(
                "a part of an array that is not compact would be a copy",
                op=self.op_name,
                expected="an array whose elements are in row-major order",
                found=f"strides {x.stride()} of shape {tuple(x.shape)}",
                hint="store it with meta.array(...)",
            )
        return own_shard(x, over, size)


def _is_first(dialect_op: DialectOp, call: CallValues) -> bool:
    """Whether an implementation is the first that an eager call asks, so that none before it might
    accept the call with other shapes.
    """
    asked = candidates(call.op, current_preference(), call.device, eager=True, call=call)
    return next(asked, None) is dialect_op


def _filling(make: Maker, kernel: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return a kernel that allocates its result."""

    def run(*values: Any) -> torch.Tensor:
        out = make()
        kernel(*values, out)
        return out

    return run
