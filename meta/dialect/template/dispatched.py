"""Source text in dispatch: what a call is answered, and the source of a call that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meta.base.device import Device
from meta.base.errors import ArgumentError, DispatchError, UnknownName
from meta.base.registry import nearest
from meta.dialect.core import Config, Configs, OpEnv, Unsupported
from meta.dialect.template.kernel import Template
from meta.dialect.template.launcher import env_of
from meta.dialect.template.pieces import Source
from meta.dialect.template.target import CUDA, TARGETS, TargetSpec
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
        reason = None if when is None else when(call)
        if reason is not None:
            raise Unsupported(reason)
        known = kernel.configs(call, CUDA)

        def made(config: Config) -> OpEnv:
            return _env(kernel.source(call, CUDA, config), call)

        env = made(())
        if len(known) > 1:
            env.configs = Configs(lambda: known[1:], made)
        return env

    return make


def _env(source: Source, call: CallValues) -> OpEnv:
    values = [*runtime_args(call.op, call.args), *call.outputs]
    tensors = [v for v in values if isinstance(v, TensorType)]
    if not all(t.is_static for t in tensors):
        return env_of(source, call.device.ordinal, None, polymorphic=True)
    known = [v.static_shape if isinstance(v, TensorType) else (v, str(v)) for v in values]
    writes = any(values[place].size for place in source.written)
    return env_of(source, call.device.ordinal, known if writes else None, polymorphic=False)


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
