"""The checks that follow from an `OpCase`. `check_case` runs them all; a test suite may call them
one by one.

Each takes a case, a sample and a dtype, and raises AssertionError with the difference found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from meta.base import config
from meta.base.device import Device
from meta.base.dtype import TOLERANCE
from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.dialect.core import candidates
from meta.dialect.core.preference import current
from meta.grad import grad
from meta.grad.core.functional import pullback
from meta.ir import TensorType, TupleType, parse, structural_equal, text
from meta.model import trace
from meta.op.core import Op, tree
from meta.op.core.check import broadcast_shapes
from meta.op.core.op import by_schema
from meta.op.core.promotion import strict_dtypes
from meta.runtime.ndarray import as_array, ndarray
from meta.testing.case import ErrorSample, OpCase, Sample
from meta.testing.compare import (
    WIDE,
    check,
    check_type,
    first_float,
    numeric_gradient,
    to_torch,
)
from meta.testing.layout import called, check_layouts, of_tensors, widest
from meta.testing.shapes import reshaped
from meta.testing.type_function import check_types
from meta.vm import compile
from meta.vm.inspect.explain import Explanation, explain


def check_error(case: OpCase, one: ErrorSample, device: str = "cpu") -> None:
    """The call raises the error that is expected, eagerly and while it is traced.

    The error names the operator and the user's line, and its message matches. Nothing is promoted:
    the records say what the operator itself refuses.
    """
    dtype = "float32" if "float32" in case.dtypes or not case.dtypes else case.dtypes[0]
    leaves, structure = tree.flatten(one.make(dtype))
    tensors = [ndarray(t.to(device)) for t in leaves if isinstance(t, torch.Tensor)]
    assert len(tensors) == len(leaves), f"{case.op}({one}): only tensors are given as leaves"

    call = of_tensors(called(case), structure)
    with strict_dtypes():
        _check_refused(lambda: call(*tensors), case, one, "eager")
        _check_refused(lambda: trace(call).program(*tensors), case, one, "traced")


def _check_refused(run: Callable[[], Any], case: OpCase, one: ErrorSample, how: str) -> None:
    what = f"{how} {case.op}({one})"
    try:
        result = run()
    except one.raises as error:
        message = str(error)
        assert re.search(one.match, message), f"{what} does not say {one.match!r} but\n{message}"
        assert error.op == case.op, f"{what} names the operator {error.op}"
        assert error.span is not None, f"{what} names no line"
    else:
        raise AssertionError(f"{what} is not refused; it gives {result!r}")


def check_second_gradient(case: OpCase, one: Sample, device: str = "cpu") -> None:
    """The gradient of ``sum(v * gradient)`` by every argument and by dy is torch's, in float64.

    ``gradient`` is the case's gradient for a random dy, ``v`` random too. What does not depend on
    an argument has the gradient zero, whichever way a side says so.
    """
    floats, ours, y, theirs, their_y = _both_sides(case, one, device)
    noise = torch.Generator().manual_seed(2)
    dy = _uniform(their_y.shape, noise)
    vs = [_uniform(theirs[i].shape, noise) for i in floats]

    their_wrt = [*(theirs[i] for i in floats), dy.clone().requires_grad_()]
    their_first = torch.autograd.grad(
        their_y, their_wrt[:-1], their_wrt[-1], create_graph=True, allow_unused=True
    )
    expected = _gradients(
        lambda ys, seeds: torch.autograd.grad(ys, their_wrt, seeds, allow_unused=True),
        [(g, v) for g, v in zip(their_first, vs, strict=True) if g is not None],
        their_wrt,
    )

    wrt = [*(ours[i] for i in floats), ndarray(dy.to(device))]
    wrt[-1].requires_grad = True
    first = grad(y, wrt[:-1], wrt[-1], create_graph=True)
    found = _gradients(
        lambda ys, seeds: grad(ys, wrt, seeds),
        [(g, ndarray(v.to(device))) for g, v in zip(first, vs, strict=True)],
        wrt,
    )
    names = [*(f"argument {i}" for i in floats), "dy"]
    for name, x, a, b in zip(names, their_wrt, found, expected, strict=True):
        a, b = (torch.zeros_like(x) if g is None else g for g in (a, b))
        check(a, b, 1e-7, 1e-8, what=f"second gradient by {name} of {case.op}({one})")


def _both_sides(
    case: OpCase, one: Sample, device: str
) -> tuple[list[int], list[ndarray], ndarray, list[torch.Tensor], torch.Tensor]:
    """Return which leaves are floats; leaves and result of operator and oracle, in float64."""
    leaves, structure = tree.flatten(one.make("float64"))
    floats = [i for i, t in enumerate(leaves) if t.dtype.is_floating_point]
    ours = _arrays(leaves, device)
    for i in floats:
        ours[i].requires_grad = True
    y = first_float(of_tensors(called(case), structure)(*ours))
    theirs = [t.clone().requires_grad_(i in floats) for i, t in enumerate(leaves)]
    return floats, ours, y, theirs, first_float(of_tensors(case.oracle, structure)(*theirs))


def _gradients(gradient: Any, pairs: list[tuple[Any, Any]], wrt: list[Any]) -> Any:
    """Return the gradients of those first gradients that depend on anything."""
    live = [(g, v) for g, v in pairs if g.requires_grad]
    if not live:
        return [None] * len(wrt)
    ys, seeds = zip(*live, strict=True)
    return gradient(ys, seeds)


def _uniform(shape: Any, generator: torch.Generator) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)


# Numeric gradients cost two runs per element; larger samples are left to the comparison with torch.
MAX_NUMERIC_ELEMENTS = 64


def check_case(case: OpCase, device: str = "cpu") -> None:
    """Run every check on every sample and dtype.

    Raises AssertionError where a kernel, a gradient or an error is not as the record says.

    >>> import torch
    >>> from meta.testing import F, OpCase, check_case, sample
    >>> try:
    ...     check_case(OpCase("tanh", [sample(F(2))], torch.sin, dtypes=("float32",)))
    ... except AssertionError:
    ...     print("tanh is not sin")
    tanh is not sin
    """
    for refused in case.errors:
        check_error(case, refused, device)
    for one in (*case.samples, *reshaped(case)):
        for dtype in case.dtypes or ("float32",):
            check_type_function(case, one, dtype, device)
            check_elementwise(case, one, dtype, device)
            for name in accepting(case, one, dtype, device):
                check_dialect(case, one, dtype, name, device)
    for one in case.samples:
        check_executors(case, one, device)
        if one.is_smooth:
            check_layouts(case, one, accepting(case, one, widest(case), device), device)
        if case.grad and one.has_floats:
            check_gradient(case, one, device)
            check_traced_gradient(case, one, device)
            if case.second and one.is_smooth:
                check_second_gradient(case, one, device)


def check_elementwise(case: OpCase, one: Sample, dtype: str, device: str = "cpu") -> None:
    """An operator that says it is elementwise gives for tensors in another order the same elements
    in that order.
    """
    leaves, structure = tree.flatten(one.make(dtype))
    if not OPERATORS[case.op].elementwise or not leaves:
        return
    run = of_tensors(called(case), structure)
    expected = run(*_arrays(leaves, device))
    y = expected.torch()
    shape = broadcast_shapes(*(tuple(x.shape) for x in leaves))
    assert tuple(y.shape) == shape, f"{case.op}({one}) has another shape than its tensors"
    order = torch.randperm(y.numel(), generator=torch.Generator().manual_seed(3))

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.flatten()[order.to(x.device)].view(y.shape)

    found = run(*_arrays([moved(x.expand(shape)) for x in leaves], device)).torch()
    check(found, moved(y), *tolerance(case, dtype), what=f"{case.op}({one}), elements moved")


def dialects_of(op: Op) -> list[str]:
    """Return the names of the dialects that implement an operator."""
    return [d.dialect.name for d in candidates(op, current(), Device("cpu"))]


def accepting(case: OpCase, one: Sample, dtype: str, device: str = "cpu") -> list[str]:
    """Return the dialects that accept a call; all that implement the operator where no kernel is
    needed (views).
    """
    return dialects_that_accept(case, explained(case, one, dtype, device))


def dialects_that_accept(case: OpCase, found: Explanation) -> list[str]:
    """Return the same of what `explained` returned."""
    if not found:
        return dialects_of(OPERATORS[case.op]) or ["torch"]
    return [c.dialect_op.dialect.name for c in found if c.env is not None]


def explained(case: OpCase, one: Sample, dtype: str, device: str = "cpu") -> Explanation:
    """Return what the dialects answer to a call; nothing where no kernel is needed."""
    args, kwargs = one.make(dtype)
    by = by_schema(OPERATORS[case.op])
    found = explain(by, *_arrays(args, device), **_arrays(kwargs, device))
    assert isinstance(found, Explanation), "a call by the schema is a single one"
    return found


def tolerance(case: OpCase, dtype: str) -> tuple[float, float]:
    """Return (rtol, atol) for a case in a dtype."""
    rtol, atol = TOLERANCE[dtype]
    return case.rtol.get(dtype, rtol), case.atol.get(dtype, atol)


def check_dialect(case: OpCase, one: Sample, dtype: str, dialect: str, device: str = "cpu") -> None:
    """One dialect, alone, agrees with the oracle in float64, and keeps its promise of shape, dtype
    and memory (`meta.vm.eager.kernel_contracts`).

    Of a sample of another shape than the case's own, only the promise is checked where torch
    refuses it, and where the oracle has NaN of no elements.
    """
    args, kwargs = one.make(dtype)
    with only(dialect), config.override(META_VERIFY=True):
        found = called(case)(*_arrays(args, device), **_arrays(kwargs, device))
    try:
        expected = _oracle(case, args, kwargs)
    except (ArithmeticError, LookupError, RuntimeError, ValueError):
        if not one.reshaped:
            raise
        return
    if one.reshaped and any(not t.numel() for t in tree.flatten((args, kwargs))[0]):
        expected = _where_known(expected, found)
    check(found, expected, *tolerance(case, dtype), what=f"{dialect}.{case.op}({one}) in {dtype}")


def _where_known(expected: Any, found: Any) -> Any:
    """Return what is expected, with what was found in the place of NaN."""
    if isinstance(expected, tuple | list):
        return tuple(_where_known(e, f) for e, f in zip(expected, found, strict=True))
    expected, found = to_torch(expected), to_torch(found)
    if not expected.dtype.is_floating_point or expected.shape != found.shape:
        return expected
    return torch.where(expected.isnan(), found.to(expected.dtype), expected)


def check_type_function(case: OpCase, one: Sample, dtype: str, device: str = "cpu") -> None:
    """The type function says what the operator returns, each time, and of symbolic extents."""
    args, kwargs = one.make(dtype)
    op = OPERATORS[case.op]
    bound = op.schema.bind(tuple(_arrays(args, device)), _arrays(kwargs, device), as_array)
    type_ = check_types(case, one, dtype)
    found = by_schema(op)(*bound)
    if op.schema.written:
        own = len(type_.fields) if isinstance(type_, TupleType) else 1
        found = found[:own] if isinstance(type_, TupleType) else found[0]
    if isinstance(found, ndarray) or (
        isinstance(found, tuple) and any(isinstance(f, ndarray) for f in found)
    ):
        check_type(found, type_)
    else:
        assert found == type_ or isinstance(type_, TupleType), (
            f"{found!r}, the type function says {type_!r}"
        )


def check_executors(case: OpCase, one: Sample, device: str = "cpu") -> None:
    """Eager call, interpreter and VM agree with the oracle; the traced program reads back from its
    text.
    """
    dtype = "float32" if "float32" in case.dtypes or not case.dtypes else case.dtypes[0]
    args, kwargs = one.make(dtype)
    expected = _oracle(case, args, kwargs)
    bounds = tolerance(case, dtype)
    leaves, structure = tree.flatten((args, kwargs))
    call = of_tensors(called(case), structure)
    check(call(*_arrays(leaves, device)), expected, *bounds, what=f"eager {case.op}({one})")
    traced = trace(call)
    program = traced.program(*_arrays(leaves, device))
    again = parse(text(program.module))
    assert structural_equal(program.module, again), (
        f"the text of {case.op}({one}) reads back as\n{text(again)}"
    )
    check(traced(*_arrays(leaves, device)), expected, *bounds, what=f"interpreted {case.op}({one})")
    inputs = _arrays(leaves, device)
    check(
        compile(traced, *inputs, device=device)(*inputs),
        expected,
        *bounds,
        what=f"compiled {case.op}({one})",
    )


def check_gradient(case: OpCase, one: Sample, device: str = "cpu") -> None:
    """The gradient agrees with torch's gradient of the oracle, and with central differences, in
    float64.
    """
    floats, ours, y, theirs, expected_y = _both_sides(case, one, device)
    assert expected_y.requires_grad, (
        "the oracle is not differentiable by torch; set grad=False or write it so that it is"
    )
    dy = _uniform(expected_y.shape, torch.Generator().manual_seed(1))
    expected = torch.autograd.grad(expected_y, [theirs[i] for i in floats], dy, allow_unused=True)
    y.backward(ndarray(dy.to(device)))
    for i, theirs_gradient in zip(floats, expected, strict=True):
        gradient = ours[i].grad
        if theirs_gradient is None or gradient is None:
            given = [g for g in (theirs_gradient, gradient) if g is not None]
            assert not any(to_torch(g).any() for g in given), (
                f"gradient of argument {i} of {case.op}({one}) is missing"
            )
            continue
        assert gradient.dtype == "float64"
        check(gradient, theirs_gradient, 1e-7, 1e-8, what=f"gradient {i} of {case.op}({one})")
    if has_numeric_gradient(one):
        _check_numeric(case, one, expected, dy, device)


def check_traced_gradient(case: OpCase, one: Sample, device: str = "cpu") -> None:
    """The gradient in a program is that of the tape, of the type of each argument, in float64."""
    floats, ours, y, _, _ = _both_sides(case, one, device)
    leaves, structure = tree.flatten(one.make("float64"))
    dy = ndarray(_uniform(y.shape, torch.Generator().manual_seed(1)).to(device))
    wrt = [ours[i] for i in floats]
    expected = grad(y, wrt, dy)

    @trace
    def gradients(*given: Any) -> Any:
        def of_floats(*values: Any) -> Any:
            tensors = list(given[:-1])
            for i, value in zip(floats, values, strict=True):
                tensors[i] = value
            return first_float(of_tensors(called(case), structure)(*tensors))

        return pullback(of_floats, [given[i] for i in floats], given[-1])

    found = gradients(*_arrays(leaves, device), dy)
    for i, a, b in zip(floats, found, expected, strict=True):
        check_type(a, TensorType(ours[i].shape, "float64"))
        check(a, b.torch().cpu(), 1e-7, 1e-8, what=f"traced gradient {i} of {case.op}({one})")


def has_numeric_gradient(one: Sample) -> bool:
    """Whether a sample is smooth, and small enough, for central differences."""
    leaves = tree.flatten(one.make("float64"))[0]
    size = sum(t.numel() for t in leaves if t.dtype.is_floating_point)
    return one.is_smooth and size <= MAX_NUMERIC_ELEMENTS


def _check_numeric(case: OpCase, one: Sample, expected: Any, dy: torch.Tensor, device: str) -> None:
    leaves, structure = tree.flatten(one.make("float64"))
    floats = [i for i, t in enumerate(leaves) if t.dtype.is_floating_point]

    def run(*values: torch.Tensor) -> torch.Tensor:
        tensors = list(leaves)
        for i, v in zip(floats, values, strict=True):
            tensors[i] = v.clone()
        call = of_tensors(called(case), structure)
        result: torch.Tensor = first_float(call(*_arrays(tensors, device))).tensor.cpu()
        return result

    numeric = numeric_gradient(run, [leaves[i].clone() for i in floats], dy)
    for i, (found, wanted) in enumerate(zip(numeric, expected, strict=True)):
        if wanted is not None:
            check(found, wanted, 1e-4, 1e-5, what=f"numeric gradient {i} of {case.op}({one})")


def _arrays(values: Any, device: str) -> Any:
    """Replace torch tensors by ndarrays with memory of their own."""
    leaves, structure = tree.flatten(values)
    arrays = [ndarray(t.detach().clone().contiguous().to(device)) for t in leaves]
    return tree.unflatten(structure, arrays)


def _oracle(case: OpCase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the oracle to copies in float64, and in the signed integers that hold the unsigned ones
    of which torch has little.
    """
    leaves, structure = tree.flatten((args, kwargs))
    copies = [
        t.to(torch.float64 if t.dtype.is_floating_point else WIDE.get(t.dtype, t.dtype), copy=True)
        for t in leaves
    ]
    return of_tensors(case.oracle, structure)(*copies)
