"""Samples of an entry through what `meta` does for it: results are compared, then gradients, then
tangents.

A check raises `IsOutside` where only torch has what the sample asks for, `Declined` or
TypeInferError where it is outside of what `meta` declares, and AssertionError where `meta` gives
something else than torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.testing._internal.common_methods_invocations import (
    gradcheck_wrapper_ctc_loss,
    gradcheck_wrapper_hermitian_input,
    gradcheck_wrapper_triangular_input,
)

from meta.base.dtype import FROM_TORCH
from meta.base.errors import GradientError, TypeInferError
from meta.grad import jvp
from meta.op.core import tree
from meta.runtime.ndarray import ndarray
from tools.torch_samples.adapters import adapter_of
from tools.torch_samples.ambiguous import (
    AMBIGUOUS,
    Drawn,
    Tied,
    Unwritten,
    compare_draws,
    compare_undefined,
    summed_over_equals,
)
from tools.torch_samples.compare import GRADIENT_TOLERANCE, TOLERANCE, compare, widened
from tools.torch_samples.entries import ENTRIES, TensorCall, differentiable, key_of, of_torch
from tools.torch_samples.outside import Declined, IsOutside, Outside, decline_if, outside_if
from tools.torch_samples.run import Outcome, walk

WRONG_GRADIENTS = {"as_strided_scatter"}
"""Entries of which torch's gradient is not that of its function: it is 1 where elements are
overwritten, and 0 where they stay. It is not compared.
"""
FORWARD = (torch.float64, torch.complex128)
"""Dtypes in which forward mode is compared: tangents are made of the same rules as gradients."""
TRIANGLES = {"cholesky_inverse": 0, "cholesky_solve": 1}
"""Entries of which torch's gradient is not 0 in a triangle that is not read: which argument."""
REPEATED = {f"nn.functional.max_unpool{n}d" for n in (1, 2, 3)}
"""Entries that may write several elements to one place. Torch's gradient gives that of the place to
each, so that the tangent of the place is their sum, and in its forward mode that of the last.
Tangents are compared with the transpose of its gradient.
"""
INEXACT = {"cholesky_inverse": 1e-4, "logcumsumexp": 1e-5}
"""Entries of which torch's forward mode differs from the derivative, and the tolerance of their
tangents: by 2e-5 of that in 60 digits, and by 3e-6 at a first element, whose tangent is its
direction, beside elements of 1e4.
"""


def run(key: str, dtypes: tuple[torch.dtype, ...] = (), limit: int | None = None) -> Outcome:
    """Run the samples of an entry, of each dtype the first ``limit`` that are not declined."""
    outcome, entry = Outcome(key), ENTRIES[key]

    def check(sample: Any, dtype: torch.dtype, where: str) -> bool:
        adapter = adapter_of(key)  # of each sample: it may trace once
        try:
            check_forward(entry, adapter, sample)
            if differentiable(key, dtype):
                outcome.gradients += check_gradient(entry, adapter, sample)
            if dtype in FORWARD and entry.supports_forward_ad:
                outcome.tangents += check_tangent(entry, adapter, sample)
        except IsOutside as reason:
            outcome.outside[reason.args[0].value] += 1
            return False
        except (Declined, GradientError, TypeInferError) as error:
            outcome.declined[_reason(error, dtype)] += 1
            return False
        except Exception as error:
            # Whatever it is, it is what this entry does wrong, and the other entries go on.
            outcome.fail(where, error, sample.input, *sample.args, **sample.kwargs)
        outcome.ran += 1
        return True

    walk(key, dtypes, limit, check)
    return outcome


def _reason(error: Declined | GradientError | TypeInferError, dtype: torch.dtype) -> str:
    if isinstance(error, Declined):
        return str(error)
    text = f"{error.op}: {error.what}"
    return text if isinstance(error, GradientError) else f"{text} ({str(dtype)[6:]})"


def check_forward(entry: Any, adapter: Callable[..., Any], sample: Any) -> None:
    """The adapter's results have torch's shapes, dtypes and values."""
    call, key = TensorCall(sample), key_of(entry)
    leaves = [t.detach() for t in call.tensors]
    for leaf in leaves:
        outside_if(leaf.layout is not torch.strided, Outside.LAYOUT)
        outside_if(leaf.dtype not in FROM_TORCH, Outside.DTYPE)

    def theirs() -> Any:
        with of_torch(), torch.no_grad():
            return call(entry.op, [leaf.clone() for leaf in leaves])

    def ours() -> Any:
        return call(adapter, [ndarray(leaf.clone()) for leaf in leaves])

    expected = theirs()
    for leaf in tree.flatten(expected)[0]:
        outside_if(leaf.layout is not torch.strided, Outside.LAYOUT)
        outside_if(leaf.dtype not in FROM_TORCH, Outside.DTYPE)
    found = ours()
    if compare_undefined(key, sample, found, expected, ours, theirs):
        return
    kind = AMBIGUOUS.get(key)

    def exact() -> Any:
        with torch.no_grad():
            true = _exactly(entry, call, leaves)
        return kind.elements(true, sample) if isinstance(kind, Tied) else true

    outside_if(_is_lost(expected, exact), Outside.WRONG)
    if isinstance(kind, Tied):
        found, expected = (kind.elements(r, sample) for r in (found, expected))
    try:
        compare(found, expected, TOLERANCE, "result", exact)
    except AssertionError:
        # Of several right results, such as vectors of either sign, the sample says what is common.
        common = sample.output_process_fn_grad
        results = tree.flatten(found)
        ours_in_torch = tree.unflatten(results[1], [leaf.detach().torch() for leaf in results[0]])
        if common(expected) is expected:
            raise
        compare(
            common(ours_in_torch),
            common(expected),
            TOLERANCE,
            "result",
            lambda: None if (true := exact()) is None else common(true),
        )


def check_gradient(entry: Any, adapter: Callable[..., Any], sample: Any) -> bool:
    """The gradients of all floating point results by all floating point arguments are torch's.

    Returns whether there was one to compare.
    """
    if entry.name in WRONG_GRADIENTS:
        return False
    kind = AMBIGUOUS.get(key_of(entry))
    if isinstance(kind, Drawn) and kind.has(sample):
        return _check_drawn_gradient(entry, adapter, sample, kind.together)
    call = TensorCall(sample)
    leaves = [t.detach() for t in call.tensors]
    theirs, results = _recorded(entry, sample)
    differentiable = [i for i, r in enumerate(results) if r.requires_grad]
    if not differentiable:
        return False
    outputs = [results[i] for i in differentiable]
    seeds = _seeds(outputs)
    asked = [i for i, leaf in enumerate(theirs) if leaf.requires_grad]
    expected = _backward(outputs, [theirs[i] for i in asked], seeds)
    if expected is None:
        return False
    ours = [ndarray(leaf.clone()) for leaf in leaves]
    given = [(i, e) for i, e in zip(asked, expected, strict=True) if e is not None]
    for i, _ in given:
        ours[i].requires_grad = True
    chosen, adapter = sample.output_process_fn_grad, _as_differentiated(entry, adapter)
    found = tree.flatten(chosen(call(adapter, ours)))[0]
    if not any(found[i].requires_grad for i in differentiable):
        decline_if(any(bool(e.any()) for _, e in given), "its result has no gradient")
    for i, seed in zip(differentiable, seeds, strict=True):
        if found[i].requires_grad:
            found[i].backward(ndarray(seed))

    def exact() -> Any:
        wide = [
            widened(leaf).requires_grad_(i in asked)
            for i, leaf in enumerate(map(torch.clone, leaves))
        ]
        results = _exactly(entry, call, wide, _as_differentiated(entry, entry.op))
        flat = [] if results is None else tree.flatten(chosen(results))[0]
        if len(flat) <= max(differentiable):
            return None
        return _backward(
            [flat[i] for i in differentiable],
            [wide[i] for i in asked],
            [widened(seed) for seed in seeds],
        )

    for i, e in given:
        gradient = ours[i].grad
        # An argument that has no influence has, to one side, no gradient, and zeros to the other.
        ours_or_zeros = torch.zeros_like(e) if gradient is None else gradient.torch()

        def one(place: int = asked.index(i)) -> Any:
            gradients = exact()
            return None if gradients is None else gradients[place]

        both = (ours_or_zeros, e)
        if isinstance(kind, Tied):
            both = tuple(summed_over_equals(g, leaves[i]) for g in both)
        compare(*both, GRADIENT_TOLERANCE, f"gradient of tensor {i}", one)
    return bool(given)


def check_tangent(entry: Any, adapter: Callable[..., Any], sample: Any) -> bool:
    """The tangents of all floating point results, along one direction of all floating point
    arguments, are those of torch's forward mode.

    Returns whether there was one to compare: random results have none that can be compared.
    """
    kind = AMBIGUOUS.get(key_of(entry))
    if isinstance(kind, Drawn | Unwritten) and kind.has(sample):
        return False
    call = TensorCall(sample)
    leaves = [t.detach() for t in call.tensors]
    found = _tangents(entry, sample, isinstance(kind, Tied))
    if found is None:
        return False
    expected, directions = found
    chosen, f = sample.output_process_fn_grad, _as_differentiated(entry, adapter)
    moves = [None if d is None else ndarray(d.clone()) for d in directions]

    def flat(*given: Any) -> list[Any]:
        return tree.flatten(chosen(call(f, given)))[0]

    _, tangents = jvp(flat, [ndarray(leaf.clone()) for leaf in leaves], moves)
    tolerance = GRADIENT_TOLERANCE
    if entry.name in INEXACT:
        tolerance = dict.fromkeys(FORWARD, (INEXACT[entry.name],) * 2)
    pairs = [(t, e) for t, e in zip(tangents, expected, strict=True) if e is not None]
    for i, (tangent, e) in enumerate(pairs):
        compare(tangent, e, tolerance, f"tangent of result {i}", lambda: None)
    return bool(pairs)


def _tangents(
    entry: Any, sample: Any, of_values: bool
) -> tuple[list[Any], list[torch.Tensor | None]] | None:
    """Return the tangents of the results in torch's forward mode, and the directions in which the
    arguments move, each None for what does not; None where torch says that it has none.

    By those arguments by which torch differentiates, or, where forward mode refuses one of these,
    by those that the sample marks. of_values: equal elements move alike.
    """
    call, transposed = TensorCall(sample), entry.name in REPEATED
    leaves = [t.detach() for t in call.tensors]
    marked = [t.requires_grad for t in call.tensors]
    for asked in ([t.requires_grad for t in _recorded(entry, sample)[0]], marked):
        moving = [leaf for leaf, a in zip(leaves, asked, strict=True) if a]
        drawn = iter([leaf.sin() for leaf in moving] if of_values else _seeds(moving))
        directions = [next(drawn) if a else None for a in asked]
        if entry.name == "triangular_solve":  # forward mode reads the other triangle, too
            upper = sample.kwargs.get("upper", True)
            directions[1] = directions[1].triu() if upper else directions[1].tril()
        f = _as_differentiated(entry, entry.op)
        try:
            with of_torch():
                if transposed:
                    return _by_transposition(entry, sample, directions), directions
                with forward_ad.dual_level():
                    duals = [
                        leaf.clone() if d is None else forward_ad.make_dual(leaf.clone(), d)
                        for leaf, d in zip(leaves, directions, strict=True)
                    ]
                    results = tree.flatten(sample.output_process_fn_grad(call(f, duals)))[0]
                    found = [forward_ad.unpack_dual(r).tangent for r in results]
                    return [None if t is None else t.clone() for t in found], directions
        except RuntimeError as error:
            if "forward" not in str(error):
                raise
    return None


def _by_transposition(
    entry: Any, sample: Any, directions: list[torch.Tensor | None]
) -> list[torch.Tensor]:
    """Return the tangent of one result as the gradient, by its direction, of torch's gradient."""
    arguments, (y,) = _recorded(entry, sample)
    dy = torch.zeros_like(y, requires_grad=True)
    asked = [x for x, d in zip(arguments, directions, strict=True) if d is not None]
    gradients = torch.autograd.grad(y, asked, dy, create_graph=True)
    return list(torch.autograd.grad(gradients, dy, [d for d in directions if d is not None]))


def _is_lost(expected: Any, exact: Callable[[], Any]) -> bool:
    """Whether torch's result has NaN where its own result in float64 has none."""
    if not any(bool(torch.isnan(r).any()) for r in tree.flatten(expected)[0]):
        return False
    true = tree.flatten(exact())[0]
    return bool(true) and not any(bool(torch.isnan(t).any()) for t in true)


def _check_drawn_gradient(entry: Any, adapter: Any, sample: Any, together: int) -> bool:
    """Compare the gradients of the sum of random results by the arguments that the sample marks."""
    call = TensorCall(sample)
    marked = [t.requires_grad for t in call.tensors]
    leaves = [t.detach() for t in call.tensors]
    if not any(marked):
        return False

    def theirs() -> list[torch.Tensor]:
        given = [leaf.clone().requires_grad_(m) for leaf, m in zip(leaves, marked, strict=True)]
        asked = [t for t, m in zip(given, marked, strict=True) if m]
        with of_torch():
            results = tree.flatten(call(entry.op, given))[0]
            total = sum(r.sum() for r in results if r.requires_grad)
            found = torch.autograd.grad(total, asked, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, asked, strict=True)]

    def ours() -> list[torch.Tensor]:
        given = [ndarray(leaf.clone()) for leaf in leaves]
        asked = [a for a, m in zip(given, marked, strict=True) if m]
        for array in asked:
            array.requires_grad = True
        for result in tree.flatten(call(adapter, given))[0]:
            if result.requires_grad:
                result.backward(ndarray(torch.ones_like(result.torch())))
        return [
            torch.zeros_like(a.torch()) if a.grad is None else a.grad.torch().clone() for a in asked
        ]

    compare_draws(ours, theirs, "gradient", together)
    return True


def _as_differentiated(entry: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what is differentiated: of functions of symmetric matrices, that of x + x.T; of
    `ctc_loss`, that of logarithms of probabilities; of torch's functions of a triangle, what reads
    the triangle alone.
    """
    if entry.name in TRIANGLES and function is entry.op:
        return partial(gradcheck_wrapper_triangular_input, function, idx=TRIANGLES[entry.name])
    if entry.gradcheck_wrapper is gradcheck_wrapper_ctc_loss:
        return lambda input, *args, **kwargs: function(input.log_softmax(2), *args, **kwargs)
    if entry.gradcheck_wrapper is not gradcheck_wrapper_hermitian_input:
        return function
    return lambda input, *args, **kwargs: function(input + input.mT, *args, **kwargs)


def _exactly(entry: Any, call: TensorCall, leaves: list[torch.Tensor], function: Any = None) -> Any:
    """Return torch's result in float64, None where it has none in this dtype."""
    try:
        with of_torch():
            return call.widened()(function or entry.op, list(map(widened, leaves)))
    except (RuntimeError, TypeError):
        return None


def _recorded(entry: Any, sample: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return arguments and results of torch's own run, recorded for gradients.

    By all floating point arguments, or, where torch refuses one of these, by those that the sample
    marks.
    """
    call = TensorCall(sample)
    marked = [t.requires_grad for t in call.tensors]
    leaves = [t.detach() for t in call.tensors]
    wanted = [leaf.dtype.is_floating_point or leaf.dtype.is_complex for leaf in leaves]
    for asked in (wanted, marked):
        theirs = [leaf.clone().requires_grad_(a) for leaf, a in zip(leaves, asked, strict=True)]
        try:
            with of_torch():
                made = call(_as_differentiated(entry, entry.op), theirs)
                results = sample.output_process_fn_grad(made)
                return theirs, tree.flatten(results)[0]
        except RuntimeError as error:
            if "not differentiable with respect to argument" not in str(error) or asked is marked:
                raise
    raise AssertionError("unreachable")


def _backward(results: list[Any], arguments: list[Any], seeds: list[Any]) -> Any:
    """Return torch's gradients, None where torch says that it has none."""
    try:
        with of_torch():
            return torch.autograd.grad(results, arguments, seeds, allow_unused=True)
    except RuntimeError as error:
        if "not implemented" in str(error):
            return None
        raise


def _seeds(results: list[torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = []
    for r in results:
        seed = torch.empty(r.shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
        if r.dtype.is_complex:
            other = torch.empty(r.shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
            seed = torch.complex(seed, other)
        drawn.append(seed.to(r.dtype))
    return drawn
