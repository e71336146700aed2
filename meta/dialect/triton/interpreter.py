"""Kernels of Triton on the CPU, by Triton's interpreter: for tests and debuggers.

The interpreter computes each block with NumPy, one after the other. It is used as it is in all
versions from 3.6 on, with these differences:

- a function that was made for the compiler runs, too, and so do the functions that it calls:
  Triton's own would have to be imported under TRITON_INTERPRET=1;
- what it changes in Triton's modules meanwhile is undone, so that compiling works before and after;
- bfloat16 is computed in float32, and rounded to nearest even. Triton's interpreter keeps it as
  integers of 16 bits and computes with these;
- functions of ``libdevice`` are those of torch, where torch has them;
- ``and``, ``or`` and ``not`` of blocks are of their elements, as the compiler has them: Python's
  ask the block for one truth;
- the number of a scalar is read as later versions do: NumPy refuses what 3.6 does.

What it cannot run (inline assembly, descriptors that need a device) raises a BackendError.

Functions of CUDA's ``libdevice`` for the interpreter: those that torch has, by torch.
"""

from __future__ import annotations

import ast
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

from meta.base.errors import BackendError
from meta.dialect.triton.binding import Bound
from meta.dialect.triton.function import Source

MODULES = (libdevice, cuda_libdevice)
_SAME = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh",
    "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "isinf", "isnan",
    "lgamma", "log", "log10", "log1p", "log2", "nextafter", "pow", "rsqrt", "signbit", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {n: getattr(torch, n) for n in _SAME} | {
    "abs": torch.abs,
    "div_rn": torch.div,
    "fabs": torch.abs,
    "finitef": torch.isfinite,
    "isfinited": torch.isfinite,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "nearbyint": torch.round,
    "rint": torch.round,
}


def of_libdevice(name: str) -> Callable[..., Any]:
    """Return a function of ``libdevice`` on tensors of the interpreter."""
    compute = FUNCTIONS.get(name)

    def function(*arguments: Any, **_: Any) -> Any:
        if compute is None:
            raise NotImplementedError(f"the interpreter has no {name} of libdevice")
        tensors = [interpreter.interpreter_semantic.to_tensor(a) for a in arguments]
        dtype = tensors[0].dtype
        values = [_values(one) for one in tensors]
        result = compute(*values).numpy()
        if result.dtype == np.bool_:
            dtype = tl.int1
        elif dtype == tl.bfloat16:
            result = result.astype(ml_dtypes.bfloat16).view(np.uint16)
        shapes = [one.shape for one in tensors if one.shape]
        type_ = tl.block_type(dtype, list(result.shape)) if shapes else dtype
        return tl.tensor(interpreter.TensorHandle(result, dtype), type_)

    return function


def _values(tensor: Any) -> torch.Tensor:
    data = np.array(tensor.handle.data)
    if tensor.dtype == tl.bfloat16:
        data = data.view(ml_dtypes.bfloat16).astype(np.float32)
    return torch.from_numpy(data)


def libdevice_names(module: Any) -> list[str]:
    """Return the functions of one of `MODULES`."""
    found = inspect.getmembers(module, callable)
    return [n for n, value in found if getattr(value, "__module__", "").endswith("libdevice")]


_STAND_INS = {
    id(getattr(module, name)): of_libdevice(name)
    for module in MODULES
    for name in libdevice_names(module)
}
"""By what a module may have imported from ``libdevice`` under another name."""
_lock = threading.RLock()
"""One kernel at a time: the interpreter changes Triton's modules."""
_PATCHED = (
    *(tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.condition, tl.core.tensor_descriptor_base),
    *MODULES,
)


def interpreted_run(source: Source, bound: Bound, grid: Sequence[int]) -> Callable[..., None]:
    """Return a kernel as a function of a run's values (see `OpEnv`) on the CPU."""
    function = _Function(source.jit.fn)
    values_of = _arguments(bound)

    def run(*values: Any) -> None:
        with _interpreting():
            try:
                function.run(grid=tuple(grid), warmup=False, **values_of(values))
            except InterpreterError as error:
                cause = error.__cause__ or error
                raise BackendError(
                    f"Triton's interpreter cannot run the kernel {source.name!r}",
                    found=f"{type(cause).__name__}: {cause}",
                    hint="it computes with NumPy, and has no inline assembly and nothing of a "
                    "device; the same kernel may compile",
                    span=source.site,
                ) from error

    return run


def _arguments(bound: Bound) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Return a function that makes a kernel's arguments of a run's values."""
    known = {**bound.constants, **{n: s.value for n, s in bound.statics.items()}}

    def arguments(values: Sequence[Any]) -> dict[str, Any]:
        found = dict(known)
        for name, pointers in bound.pointers.items():
            tensors = tuple(values[place] for place in pointers.places)
            found[name] = tensors if pointers.several else tensors[0]
        for name, number in bound.numbers.items():
            found[name] = values[number.place]
        for name, stride in bound.strides.items():
            found[name] = values[stride.place].stride(stride.axis)
        return found

    return arguments


@contextmanager
def _interpreting() -> Iterator[None]:
    """Let functions of ``triton.jit`` run in a block, and leave Triton as it was."""
    with _lock, ExitStack() as stack:
        before = [(module, dict(vars(module))) for module in _PATCHED]
        stack.callback(_restore, before)
        stack.callback(_Function.undo)
        stack.enter_context(np.errstate(all="ignore"))
        for target, name, value in (
            (JITFunction, "__call__", _called),
            (interpreter.interpreter_builder, "__class__", _Builder),
            (interpreter, "_patch_lang_tensor", _patch_tensor),
            (interpreter, "_implicit_cvt", _argument),
            (interpreter.ReduceScanOpInterface, "apply", _reduced),
        ):
            stack.callback(setattr, target, name, getattr(target, name))
            setattr(target, name, value)
        for module in MODULES:
            for name in libdevice_names(module):
                setattr(module, name, of_libdevice(name))
        yield


@contextmanager
def interpreting_launches() -> Iterator[None]:
    """Let launches of functions of ``triton.jit``, as ``kernel[grid](x, y)``, run by the
    interpreter in a block. Of configurations that Triton would time, the first one is taken.
    """
    with _interpreting():
        before = JITFunction.run, Autotuner._bench
        JITFunction.run, Autotuner._bench = _launched, _not_timed
        try:
            yield
        finally:
            JITFunction.run, Autotuner._bench = before


def _not_timed(*_: Any, **__: Any) -> list[float]:
    return [0.0, 0.0, 0.0]  # the median and two quantiles of a configuration: all are equal


def _launched(function: JITFunction, *args: Any, **kwargs: Any) -> Any:
    return _Function(function.fn).run(*args, **kwargs)


def _restore(before: list[tuple[Any, dict[str, Any]]]) -> None:
    for module, names in before:
        for name, value in dict(vars(module)).items():
            if name not in names:
                delattr(module, name)
            elif names[name] is not value:
                setattr(module, name, names[name])


def _called(function: JITFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a function of ``triton.jit`` from an interpreted one."""
    return _Function(function.fn)(*args, **kwargs)


_patch = interpreter._patch_lang_tensor


def _patch_tensor(tensor: Any, *scope: Any) -> None:
    """Change ``tl.tensor`` as Triton's interpreter does; `_restore` undoes it."""
    _patch(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.squeeze())


_convert = interpreter._implicit_cvt


def _argument(value: Any) -> Any:
    """Return an argument as a kernel has it; of a float Triton's interpreter leaves Python's."""
    if not isinstance(value, float):
        return _convert(value)
    return tl.tensor(TensorHandle(np.array([value], np.float32), tl.float32), tl.float32)


class _Transformer(interpreter.ASTTransformer):  # type: ignore[misc]
    """Triton's, which also lets `_logical` compute ``and``, ``or`` and ``not``."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        return self._called(node, "and" if isinstance(node.op, ast.And) else "or", node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self._called(node, "not", [node.operand])
        return self.generic_visit(node)

    def _called(self, node: ast.expr, kind: str, operands: list[ast.expr]) -> ast.AST:
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        later = [ast.Lambda(args=nothing, body=self.visit(operand)) for operand in operands]
        function = ast.Name(id=LOGICAL, ctx=ast.Load())
        call = ast.Call(func=function, args=[ast.Constant(value=kind), *later], keywords=[])
        return ast.copy_location(call, node)


LOGICAL = "_meta_logical"


def _logical(kind: str, *operands: Callable[[], Any]) -> Any:
    """Return a logical operation, of which later operands are computed if they are needed."""
    found = operands[0]()
    if kind == "not":
        return found.__not__() if isinstance(found, tl.tensor) else not found
    for operand in operands[1:]:
        if isinstance(found, tl.tensor):
            other = interpreter.interpreter_semantic.to_tensor(operand())
            found = found.logical_and(other) if kind == "and" else found.logical_or(other)
        elif bool(found) == (kind == "or"):
            return found
        else:
            found = operand()
    return found


class _Function(InterpretedFunction):  # type: ignore[misc]
    """Triton's interpreted function. It puts names into the module of the function, which `undo`
    takes out again: ``tl``, without which it runs nothing, and what computes functions of
    ``libdevice`` in the place of these.
    """

    added: ClassVar[list[tuple[Any, set[str]]]] = []
    replaced: ClassVar[list[tuple[Any, str, Any]]] = []

    def rewrite(self) -> Any:
        if self.fn in self.rewritten_fn:
            return self.rewritten_fn[self.fn]
        space = self.fn.__globals__
        before = set(space)
        if not any(value is tl for value in space.values()):
            space["_tl"] = tl
        for name, value in list(space.items()):
            if id(value) in _STAND_INS:
                self.replaced.append((self.fn, name, value))
                space[name] = _STAND_INS[id(value)]
        space[LOGICAL] = _logical
        self.rewriter.ast_transformer = _Transformer()
        made = super().rewrite()
        new = set(space) - before
        if new:
            self.added.append((self.fn, new))
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.rewrite()
        return super().__call__(*args, **kwargs)

    @classmethod
    def undo(cls) -> None:
        """Leave the modules of all functions that ran as they were."""
        for function, names in cls.added:
            for name in names:
                function.__globals__.pop(name, None)
        for function, name, value in cls.replaced:
            function.__globals__[name] = value
        cls.added.clear()
        cls.replaced.clear()
        cls.rewritten_fn.clear()


def _is_bfloat16(handle: Any) -> bool:
    return isinstance(handle, TensorHandle) and handle.dtype.scalar == tl.bfloat16


def _wide(handle: Any) -> Any:
    """Return values of bfloat16 as float32; others as they are."""
    if not _is_bfloat16(handle):
        return handle
    data = np.ascontiguousarray(handle.data).view(ml_dtypes.bfloat16).astype(np.float32)
    return TensorHandle(data.reshape(handle.data.shape), tl.float32)


def _narrow(handle: Any) -> Any:
    """Return float32 rounded to bfloat16."""
    data = np.asarray(handle.data, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    return TensorHandle(data, tl.bfloat16)


_reduce = interpreter.ReduceScanOpInterface.apply


def _reduced(operation: Any, given: Any) -> Any:
    """Reduce, or scan, with bfloat16 as float32."""
    if not isinstance(given, tuple):
        return _reduced(operation, (given,))[0]
    handles = [_wide(one.handle) for one in given]
    types = [_of_element(one.type, h.dtype) for one, h in zip(given, handles, strict=True)]
    made = _reduce(operation, tuple(map(tl.tensor, handles, types)))
    return tuple(
        tl.tensor(_narrow(m.handle), _of_element(m.type, tl.bfloat16))
        if g.dtype == tl.bfloat16 and m.dtype == tl.float32
        else m
        for m, g in zip(made, given, strict=True)
    )


def _of_element(type_: Any, element: Any) -> Any:
    return tl.block_type(element, type_.shape) if type_.is_block() else element


class _Builder(InterpreterBuilder):  # type: ignore[misc]
    """Triton's, with bfloat16 computed in float32."""

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if not (_is_bfloat16(lhs) or _is_bfloat16(rhs)):
            return super().binary_op(lhs, rhs, op)
        made = super().binary_op(_wide(lhs), _wide(rhs), op)
        return made if made.data.dtype == np.bool_ else _narrow(made)

    def unary_op(self, arg: Any, op: Any) -> Any:
        if not _is_bfloat16(arg):
            return super().unary_op(arg, op)
        return _narrow(super().unary_op(_wide(arg), op))

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where or not _is_bfloat16(other):
            return super().ternary_op(lhs, rhs, other, op)
        return _narrow(super().ternary_op(_wide(lhs), _wide(rhs), _wide(other), op))

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if not _is_bfloat16(z):
            return super().create_fma(x, y, z)
        return _narrow(super().create_fma(_wide(x), _wide(y), _wide(z)))

    def create_erf(self, arg: Any) -> Any:
        made = super().create_erf(_wide(arg))
        return _narrow(made) if _is_bfloat16(arg) else made

    def create_rsqrt(self, arg: Any) -> Any:
        made = super().create_rsqrt(_wide(arg))
        return _narrow(made) if _is_bfloat16(arg) else made

    def create_dot(self, a: Any, b: Any, d: Any, *more: Any) -> Any:
        made = super().create_dot(_wide(a), _wide(b), _wide(d), *more)
        return _narrow(made) if _is_bfloat16(d) else made

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar == tl.bfloat16:
            if _is_bfloat16(src):
                return src
            wide = src if src.dtype.scalar == tl.float32 else super().cast_impl(src, tl.float32)
            return _narrow(wide)
        return (
            super().cast_impl(_wide(src), dst_type)
            if _is_bfloat16(src)
            else (super().cast_impl(src, dst_type))
        )

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if _is_bfloat16(src) or dst_type.scalar == tl.bfloat16:
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding_mode)

    def get_bf16(self, value: float) -> Any:
        return _narrow(self.get_fp32(value))
