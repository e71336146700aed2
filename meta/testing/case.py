"""`OpCase`: what an operator has to do, as data.

A sample gives arguments; `F`, `I`, `B` and `C` stand for tensors made when a check runs: random
floats of the dtype under test, random ints, random bools, and given numbers in the dtype under
test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from meta.base.dtype import TO_TORCH
from meta.base.errors import MetaError, TypeInferError
from meta.op.core.tree import flatten

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Spec:
    """A tensor argument to be made: ``make(dtype, generator)``; ``given`` says that it has floats
    which are no accident, ``numbers`` that all its values are given. bounds: as the record states
    them, None where other values do as well.
    """

    make: Callable[[str, torch.Generator], torch.Tensor]
    text: str
    given: bool = False
    numbers: bool = False
    bounds: tuple[float | None, float | None] = (None, None)

    def __repr__(self) -> str:
        return self.text


LEAST, MOST = -2.0, 2.0  # the bounds of floats of which a record states none


def F(*shape: int, low: float = LEAST, high: float = MOST) -> Spec:
    """Floats of the dtype under test, uniform on [low, high).

    >>> import torch
    >>> x = meta.testing.F(100, low=0.0, high=1.0).make("float16", torch.Generator())
    >>> x.dtype, bool(((x >= 0) & (x <= 1)).all())
    (torch.float16, True)
    """

    def make(dtype: str, generator: torch.Generator) -> torch.Tensor:
        values = torch.empty(shape, dtype=torch.float64).uniform_(low, high, generator=generator)
        return values.to(TO_TORCH[dtype])

    bounds = low if low != LEAST else None, high if high != MOST else None
    return Spec(make, f"F{list(shape)}", bounds=bounds)


def I(*shape: int, low: int, high: int, dtype: str = "int64") -> Spec:  # noqa: E743
    """Integers, uniform on [low, high).

    >>> import torch
    >>> x = meta.testing.I(100, low=3, high=5, dtype="int32").make("float32", torch.Generator())
    >>> x.dtype, sorted(set(x.tolist()))
    (torch.int32, [3, 4])
    """

    def make(_: str, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator).to(TO_TORCH[dtype])

    return Spec(make, f"I{list(shape)}", bounds=(low, high - 1))


def B(*shape: int) -> Spec:
    """Bools, either with probability one half.

    >>> import torch
    >>> mask = meta.testing.B(2, 3).make("float32", torch.Generator())
    >>> mask.dtype, tuple(mask.shape)
    (torch.bool, (2, 3))
    """
    return Spec(
        lambda _, generator: torch.randint(0, 2, shape, generator=generator).bool(),
        f"B{list(shape)}",
    )


def C(values: Any, dtype: str | None = None) -> Spec:
    """The given (nested) numbers, in the dtype under test or in ``dtype``.

    >>> import torch
    >>> meta.testing.C([1, 2]).make("float16", torch.Generator())
    tensor([1., 2.], dtype=torch.float16)
    """
    return Spec(
        lambda under_test, _: torch.tensor(values, dtype=TO_TORCH[dtype or under_test]),
        f"C{values}",
        dtype is None or dtype in FLOATS,
        True,
    )


@dataclass(frozen=True)
class Sample:
    """Arguments of one call; a `Spec` (also inside a tuple) stands for a tensor.

    ``reshaped``: the tensors have other shapes than the record's (see `meta.testing.shapes`).
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reshaped: bool = field(default=False, kw_only=True)

    @property
    def has_floats(self) -> bool:
        """Whether a floating point tensor is among the arguments, so that there can be a
        gradient.
        """
        return any(t.dtype.is_floating_point for t in flatten(self.make("float64"))[0])

    @property
    def is_smooth(self) -> bool:
        """Whether no float tensor is given by value, and no number is infinite: those are kinks,
        ties and infinities on purpose.
        """
        specs = flatten((self.args, self.kwargs), lambda v: isinstance(v, Spec))[0]
        numbers = flatten((self.args, self.kwargs), lambda v: isinstance(v, float))[0]
        return not any(s.given for s in specs) and all(map(math.isfinite, numbers))

    def make(self, dtype: str, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with torch tensors in place of the specs; the same for the same
        seed.
        """
        generator = torch.Generator().manual_seed(seed)
        return (
            tuple(_sample(a, dtype, generator) for a in self.args),
            {k: _sample(v, dtype, generator) for k, v in self.kwargs.items()},
        )

    def __str__(self) -> str:
        parts = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return ", ".join(parts)


def _sample(value: Any, dtype: str, generator: torch.Generator) -> Any:
    if isinstance(value, Spec):
        return value.make(dtype, generator)
    if isinstance(value, tuple | list) and any(isinstance(v, Spec) for v in value):
        return tuple(_sample(v, dtype, generator) for v in value)
    return value


def sample(*args: Any, **kwargs: Any) -> Sample:
    """Return the arguments of one call.

    >>> args, kwargs = meta.testing.sample(meta.testing.F(2, 3), axis=1).make("float32")
    >>> tuple(args[0].shape), kwargs
    ((2, 3), {'axis': 1})
    """
    return Sample(args, kwargs)


@dataclass(frozen=True)
class ErrorSample(Sample):
    """Arguments that the operator refuses: with which error, and what its message matches."""

    match: str
    raises: type[MetaError]


def error(
    *args: Any, match: str, raises: type[MetaError] = TypeInferError, **kwargs: Any
) -> ErrorSample:
    """Return the arguments of a call that raises; ``match`` is a regular expression.

    >>> refused = meta.testing.error(meta.testing.F(2), axis=3, match="out of range")
    >>> refused.match, refused.raises.__name__
    ('out of range', 'TypeInferError')
    """
    return ErrorSample(args, kwargs, match, raises)


@dataclass(frozen=True)
class OpCase:
    """The expected behaviour of one operator.

    Attributes
    ----------
    op: the operator's name.
    samples: arguments to try.
    oracle: an independent implementation on torch tensors: floating point tensors come as float64,
        others as they are. For an operator with in-out slots it returns the operator's own results,
        then the new values of the written arguments.
    dtypes: what `F` and `C` make.
    dialects: who has to implement the operator, if it computes.
    devices: kinds of device on which the samples make sense: one of them may name its device.
    grad: whether the gradient is checked, against torch's gradient of the oracle and numerically.
    second: whether the gradient's own gradient is checked, against torch's double backward; False
        where torch has none or the operator of the gradient says why it is not differentiable.
    expanded: whether arguments may have equal elements throughout: singular matrices may not.
    why: if no case of a differentiable operator has ``grad``, the reason.
    rtol, atol: tolerances by dtype where the usual ones (`meta.base.dtype.TOLERANCE`) do not do;
    say why beside it.
    errors: arguments that are refused, and how; see `error` and `refusals`.

    >>> import torch
    >>> from meta.testing import F, OpCase, check_case, sample
    >>> case = OpCase("tanh", [sample(F(2, 3))], torch.tanh, dtypes=("float32",))
    >>> check_case(case)
    >>> case.op, case.grad, len(case.samples)
    ('tanh', True, 1)
    """

    op: str
    samples: list[Sample]
    oracle: Callable[..., Any]
    dtypes: tuple[str, ...] = FLOATS
    dialects: tuple[str, ...] = ("tvm", "torch")
    devices: tuple[str, ...] = ("cpu", "cuda")
    grad: bool = True
    second: bool = True
    expanded: bool = True
    why: str = ""
    rtol: dict[str, float] = field(default_factory=dict)
    atol: dict[str, float] = field(default_factory=dict)
    errors: list[ErrorSample] = field(default_factory=list)


def refusals(errors: dict[str, list[ErrorSample]]) -> list[OpCase]:
    """Return cases that only say what operators refuse.

    errors: error samples by the name of an operator, or by several names with spaces between them.

    >>> wrong = meta.testing.error(meta.testing.F(2), axis=3, match="out of range")
    >>> cases = meta.testing.refusals({"softmax log_softmax": [wrong]})
    >>> [case.op for case in cases]
    ['softmax', 'log_softmax']
    """
    return [
        OpCase(op, [], lambda *_, **__: None, errors=found)
        for names, found in errors.items()
        for op in names.split()
    ]
