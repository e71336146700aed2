"""Runs torch's own samples of an operator under torch.compile(backend="meta", fullgraph=True),
forward and backward, and beside eager PyTorch.

Kernels are torch's: what is tested is how calls are converted, and what calls back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch.utils import _pytree as pytree

from meta.frontend.dynamo.compiler import record_compiled_graphs
from tools.torch_samples.ambiguous import (
    AMBIGUOUS,
    Drawn,
    Tied,
    Unwritten,
    alike,
    compare_draws,
    summed_over_equals,
)
from tools.torch_samples.compare import GRADIENT_TOLERANCE, compare
from tools.torch_samples.entries import (
    ENTRIES,
    OTHERS,
    TensorCall,
    differentiable,
    dtypes_of,
    of_torch,
    samples,
)

MOST, FEW = 6, 2
"""How many samples of an entry are compiled in the first of its dtypes, and how many of them in
each of the others.
"""
WITHOUT_GRADIENT = (torch.bfloat16,)
"""Dtypes in which the results alone are compared."""
NO_GRAPH = (
    torch._dynamo.exc.Unsupported,
    torch._dynamo.exc.UserError,
    torch._dynamo.exc.InternalTorchDynamoError,
    torch._dynamo.exc.BackendCompilerFailed,
)
REFUSES = (RuntimeError, NotImplementedError, AssertionError)
"""What torch raises where it does not run a sample that it has for its own tests."""


@dataclass(frozen=True)
class Outcome:
    """What came of a sample.

    what: "same", or what kept it from being compared: "torch", which does not run it; "graph", of
    which TorchDynamo or AOTAutograd makes none, or a wrong one; "refused" by the backend. why: the
    first line of the error.
    calls_back: the overloads that PyTorch runs from within the program, and why.
    """

    what: str
    why: str = ""
    calls_back: frozenset[str] = frozenset()


def compiled_dtypes(key: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes in which an entry is compiled: those in which it is run, and complex64."""
    usual = dtypes_of(key)
    narrow = ENTRIES[key].supports_dtype(torch.complex64, "cpu") and not set(OTHERS) & set(usual)
    return (*usual, torch.complex64) if narrow else usual


def outcomes(key: str, dtype: torch.dtype) -> Iterator[Outcome]:
    """Run samples of an entry in a dtype; AssertionError if one of them differs."""
    most = MOST if dtype is dtypes_of(key)[0] else FEW
    for sample in itertools.islice(samples(key, dtype), most):
        with _unseeded(), of_torch():
            yield _outcome(key, dtype, sample)


@contextmanager
def _unseeded() -> Iterator[None]:
    """Let torch's random entries draw without a seed of their own, which makes no graph."""

    def draw(op: Any, *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    with patch.object(invocations, "wrapper_set_seed", draw):
        yield


def _outcome(key: str, dtype: torch.dtype, sample: Any) -> Outcome:
    op = ENTRIES[key].op
    trains = differentiable(key, dtype) and dtype not in WITHOUT_GRADIENT

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    try:
        expected = _run(call, sample, trains)
    except REFUSES as error:
        return Outcome("torch", _line(error))
    torch._dynamo.reset()
    run = torch.compile(call, backend="meta", fullgraph=True, options={"dispatch": "torch"})
    with record_compiled_graphs() as graphs:
        try:
            found = [_run(run, sample, trains)]
        except (*NO_GRAPH, RuntimeError) as error:
            torch._dynamo.reset()
            try:
                _run(torch.compile(call, backend="aot_eager", fullgraph=True), sample, trains)
            except (*NO_GRAPH, RuntimeError):
                return Outcome("graph", _line(getattr(error, "inner_exception", error)))
            if isinstance(error, torch._dynamo.exc.BackendCompilerFailed):
                return Outcome("refused", _line(error.inner_exception))
            raise
    if trains:  # once the gradient's graph is compiled, both may be called in another way
        found.append(_run(run, sample, trains))
    programs = [p for graph in graphs for p in graph.programs()]
    back = frozenset(f"{c.operator}: {c.why}" for p in programs for c in p.calls_back)
    kind, what = AMBIGUOUS.get(key), f"{key} of {sample}"
    if isinstance(kind, Unwritten):
        alike(found[-1].results, expected.results)
    elif isinstance(kind, Drawn) and kind.has(sample):
        _compare_drawn(run, call, sample, trains, what, kind.together)
    else:
        for each in found:
            _compare(each, expected, call, sample, trains, what, kind)
    return Outcome("same", "", back)


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@dataclass
class _Run:
    """The tensors of the result of a call, their gradients by the arguments that are trained, and
    the arguments, which the call may have written to.
    """

    results: list[torch.Tensor]
    gradients: list[Any]
    arguments: list[torch.Tensor]


def _compare(
    found: _Run,
    expected: _Run,
    call: Callable[..., Any],
    sample: Any,
    trains: bool,
    what: str,
    kind: Any,
) -> None:
    def exact() -> _Run:
        return _run(call, sample, trains, wide=True)

    for part in ("results", "gradients", "arguments"):

        def of(run: _Run, part: str = part) -> Any:
            values = getattr(run, part)
            if isinstance(kind, Tied) and part == "results":
                several = len(values) > 1
                values = kind.elements(values if several else values[0], sample)
                return list(values) if several else [values]
            if isinstance(kind, Tied) and part == "gradients":
                return [summed_over_equals(g, sample.input) for g in values]
            return values

        mine, theirs = of(found), of(expected)
        name = f"{part} of {what}"
        compare(mine, theirs, GRADIENT_TOLERANCE, name, lambda of=of: of(exact()))


def _compare_drawn(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    sample: Any,
    trains: bool,
    what: str,
    together: int,
) -> None:
    """Compare random results and the gradients of their sum."""

    def values(call: Callable[..., Any], part: str) -> list[torch.Tensor]:
        found = getattr(_run(call, sample, trains, seed=None), part)
        return [t for t in found if t is not None]

    for part in ("results", "gradients"):
        both = (partial(values, call, part) for call in (ours, theirs))
        compare_draws(*both, f"{part} of {what}", together)


def _run(
    function: Callable[..., Any],
    sample: Any,
    trains: bool,
    seed: int | None = 0,
    wide: bool = False,
) -> _Run:
    """Call a function with copies of a sample's tensors, or with these in float64.

    seed: for torch's generator; None to go on drawing from it, and to take the gradient of the sum.
    What a sample says of its result is done first: of eigenvectors it takes away the sign.
    """
    call = TensorCall(sample).widened() if wide else TensorCall(sample)
    tensors = [_copy(t).requires_grad_(trains and t.requires_grad) for t in call.tensors]
    if seed is not None:
        torch.manual_seed(seed)
    result = _tensors(sample.output_process_fn_grad(call(function, tensors)))
    trained = [t for t in tensors if t.requires_grad]
    outs = [t for t in result if t.requires_grad]
    if not trained or not outs:
        return _Run(result, [], tensors)
    least = -1 if seed is not None else 1
    seeds = [torch.linspace(least, 1, o.numel()).reshape(o.shape).to(o.dtype) for o in outs]
    gradients = torch.autograd.grad(outs, trained, seeds, allow_unused=True)
    return _Run(result, list(gradients), tensors)


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(value)
    return [x for x in leaves if isinstance(x, torch.Tensor)]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a leaf that lies in memory as another tensor does, in a copy of all of that memory."""
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    memory = tensor.untyped_storage().clone()
    made = torch.empty(0, dtype=tensor.dtype)
    made.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
    made = made.conj() if tensor.is_conj() else made
    made = torch._neg_view(made) if tensor.is_neg() else made
    return made.detach()
