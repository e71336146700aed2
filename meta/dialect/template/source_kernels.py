"""Source text in dispatch: what a call is answered, and the source of a call that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from meta.base.device import Device
from meta.base.errors import ArgumentError, DispatchError, UnknownName
from meta.base.registry import nearest
from meta.dialect.core import Config, Configs, OpEnv, Unsupported, decline_if
from meta.dialect.core.openv import declining
from meta.dialect.template.kernel import Template
from meta.dialect.template.launcher import PLANS, env_of
from meta.dialect.template.names import NeedsExtents
from meta.dialect.template.pieces import Source
from meta.dialect.template.target import CUDA, TARGETS, TargetSpec
from meta.ir.dims import is_symbolic
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, array_type, map_tensors, runtime_args
from meta.op.core.op import Op
from meta.runtime.ndarray import as_array, ndarray

if TYPE_CHECKING:
    from meta.dialect.template import TemplateDialect

When = Callable[[CallValues], str | None]
SOMEWHERE = Device("cuda:0")
"""Where a call of types is: no device is needed for its source."""


def maker(kernel: Template, when: When | None) -> Callable[[CallValues], OpEnv]:
    """Return what answers calls with the kernel of their source."""

    def make(call: CallValues) -> OpEnv:
        declining(when, call)

        def made(config: Config) -> OpEnv:
            return _env(kernel.source(call, CUDA, config), call)

        try:
            known = kernel.configs(call, CUDA)
            env = made(())
        except NeedsExtents:
            by_extents = ByExtents(make, call)
            return OpEnv(by_extents, allocates=False, strided=False, polymorphic=True)
        if len(known) > 1:
            env.configs = Configs(lambda: known[1:], made)
        return env

    return make


class ByExtents:
    """A kernel whose source follows from extents, for calls whose extents are known at run time: a
    source for each combination.
    """

    def __init__(self, make: Callable[[CallValues], OpEnv], call: CallValues) -> None:
        self._make, self._call = make, call
        self._env_of = lru_cache(maxsize=PLANS)(self._env)
        for value in call.args:
            decline_if(
                is_symbolic(value),
                "its source follows from extents, and an argument is one that is not known",
            )

    def __call__(self, *values: Any) -> None:
        shapes = tuple(v.shape for v in values if isinstance(v, torch.Tensor))
        self._env_of(shapes).run(*values)

    def _env(self, shapes: tuple[torch.Size, ...]) -> OpEnv:
        """Return the kernel for these shapes; DispatchError for those that it does not serve."""
        call, rest = self._call, iter(shapes)
        args = map_tensors(call.op, call.args, lambda t: t.with_shape(tuple(next(rest))))
        concrete = call.op.call_values(args, call.device)
        try:
            return self._make(concrete)
        except Unsupported as refusal:
            raise DispatchError(
                f"the source text does not serve this call: {refusal}",
                op=call.op.name,
                found=concrete,
            ) from None


def _env(source: Source, call: CallValues) -> OpEnv:
    values = [*runtime_args(call.op, call.args), *call.outputs]
    tensors = [v for v in values if isinstance(v, TensorType)]
    if not all(t.is_static for t in tensors):
        return env_of(source, call.device.ordinal, None, polymorphic=True)
    known = tuple(v.static_shape if isinstance(v, TensorType) else (v, str(v)) for v in values)
    return env_of(source, call.device.ordinal, known, polymorphic=False)


def kernel_of(dialect: TemplateDialect, name: str) -> Template:
    """Return the kernel of an operator; UnknownName if it has no source text."""
    if name not in dialect.kernels:
        raise UnknownName(
            f"the operator {name!r} has no source text", hint=nearest(name, dialect.kernels)
        )
    return dialect.kernels[name]


def call_of(op: Op, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallValues:
    """Return the call of an operator with arguments, in which types may stand for arrays; a
    `CallValues` is one already.
    """
    if len(args) == 1 and isinstance(args[0], CallValues):
        return args[0]
    bound = op.schema.bind(args, dict(kwargs), _lifted)
    arrays = [v for v in runtime_args(op, bound) if isinstance(v, ndarray)]
    device = arrays[0].device if arrays else SOMEWHERE
    return op.call_values(map_tensors(op, bound, _type_of), device)


def _lifted(value: Any) -> Any:
    return value if isinstance(value, TensorType) else as_array(value)


def _type_of(value: Any) -> TensorType:
    return array_type(value.key) if isinstance(value, ndarray) else value


def source_of(
    dialect: TemplateDialect,
    op: Op,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    target: str,
    config: Mapping[str, int | str] | None,
) -> Source:
    """Return the source of a call; see `TemplateDialect.source`."""
    if not isinstance(op, Op):
        raise ArgumentError(
            "source text is that of an operator", expected="an operator", found=repr(op)
        )
    kernel, spec = kernel_of(dialect, op.name), TARGETS[target]
    return source_for(kernel, spec, call_of(op, args, kwargs), config)


def source_for(
    kernel: Template,
    target: TargetSpec,
    call: CallValues,
    config: Mapping[str, int | str] | None = None,
) -> Source:
    """Return the source of a call; DispatchError if the kernel does not serve it."""
    try:
        return kernel.source(call, target, tuple(sorted((config or {}).items())))
    except Unsupported as refusal:
        raise DispatchError(
            f"the source text does not serve this call: {refusal}",
            op=kernel.op.name,
            found=call,
        ) from None
