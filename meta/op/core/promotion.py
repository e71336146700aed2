"""Promotion: operands of several dtypes in a call that a user writes are cast to one.

Operators are strict, and so are programs: the casts are calls like others, which the printed
program shows and gradients pass through. Code that derives programs (passes, gradient rules,
importers) is not promoted, because a second dtype there is a mistake. An operator names the slots
that are promoted together: ``@op(promotes=("x1", "x2"))``.

Of one that ``counts_as_float``, integers and bools become float32, as in a quotient.

Dtypes are combined by `meta.result_type`: those of one kind as the Array API says, an integer with
a floating point dtype as torch does, and Python numbers are weak.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from meta.base import config
from meta.base.dtype import FLOAT8, has_gradient
from meta.base.dtype_info import result_type
from meta.base.registry import OPERATORS
from meta.runtime.ndarray import array


def strict_dtypes() -> AbstractContextManager[None]:
    """Let nothing be promoted in a block: operands of several dtypes are a TypeInferError there,
    which names the cast.

    For the whole process: META_STRICT_DTYPES=1.

    >>> i, x = meta.array([1, 2]), meta.array([0.5, 0.5])
    >>> (i + x).dtype
    'float32'
    >>> with meta.strict_dtypes():
    ...     (i.astype("float32") + x).dtype
    'float32'
    """
    return config.override(META_STRICT_DTYPES=True)


def common_dtype(op: Any, args: tuple[Any, ...]) -> str | None:
    """Return the dtype to which operands of a user's call are cast; the arguments are canonical.

    None where nothing is to be cast: under `strict_dtypes`, and for float8, which has no
    arithmetic, too.
    """
    operands = list(_operands(op, args))
    dtypes = {x.dtype for x in operands if not isinstance(x, int | float)}
    alone = len(dtypes) == 1 and len(operands) == 1
    if not dtypes or dtypes & FLOAT8 or (alone and not op.counts_as_float):
        return None
    common = result_type(*dtypes, *(x for x in operands if isinstance(x, int | float)))
    if op.counts_as_float and not has_gradient(common):
        common = "float32"
    if dtypes == {common} or config.get("META_STRICT_DTYPES"):
        return None
    return common


def cast_together(op: Any, args: tuple[Any, ...], common: str) -> tuple[Any, ...]:
    """Return canonical arguments with the operands that are promoted together in one dtype."""
    astype = OPERATORS["astype"]

    def in_common(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(in_common(t) for t in x)
        return (
            x if x is None or isinstance(x, int | float) or x.dtype == common else astype(x, common)
        )

    places = {op.schema.index[name] for name in op.promotes}
    return tuple(in_common(a) if i in places else a for i, a in enumerate(args))


def with_complex(op: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a user's call in which Python's complex numbers are 0-d arrays, where
    a number or a tensor may stand.

    They are complex128 beside an operand of 64 bits for each real number, else complex64: they are
    weak, as other numbers are.
    """
    given = [*zip(op.schema.names, args, strict=False), *kwargs.items()]
    if not any(type(a) is complex for _, a in given):
        return args, kwargs
    wide = any(str(getattr(a, "dtype", "")).endswith(("float64", "complex128")) for _, a in given)

    def lifted(name: str, a: Any) -> Any:
        takes = op.schema.kinds[op.schema.index[name]] == "scalar or tensor"
        if type(a) is not complex or not takes:
            return a
        return array(a, "complex128" if wide else "complex64")

    found = [lifted(name, a) for name, a in given]
    return tuple(found[: len(args)]), dict(zip(kwargs, found[len(args) :], strict=True))


def _operands(op: Any, args: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the tensors and numbers that are promoted together."""
    for name in op.promotes:
        given = args[op.schema.index[name]]
        yield from given if isinstance(given, tuple) else () if given is None else (given,)
