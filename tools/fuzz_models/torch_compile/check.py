"""Comparing the calls of a compiled program with eager PyTorch."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import meta.frontend.dynamo  # noqa: F401  (registers the backend)
from meta.base.errors import IndexOutOfRange, MetaError
from tools.fuzz_models.face import Failure
from tools.fuzz_models.torch_compile.fake_kernels import misstated
from tools.fuzz_models.torch_compile.noise import Noise
from tools.fuzz_models.torch_compile.observe import Outcome, Seen, observe
from tools.fuzz_models.torch_compile.program import Call, Program, namespace

OWN = "meta"
OTHER = "aot_eager_decomp_partition"
"""The backend that has all of torch.compile but a compiler: what it does wrong is not ours."""
NOISES = ((4, 1.0), (16, 2.0))
"""How many disturbed runs there are, and how disturbed: the second if the first finds a fault."""


@dataclass(frozen=True)
class Way:
    """How programs are run."""

    device: str = "cpu"

    def __str__(self) -> str:
        return self.device


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Compute products of float32 in float32 on a GPU."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = False
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        matmul.allow_tf32 = before


def check(program: Program, device: str = "cpu") -> Failure | None:
    """Run a program's calls; return what is wrong, None if nothing is, or if it is PyTorch's."""
    failure = differs(program, OWN, device)
    if failure is None or differs(program, OTHER, device) is not None:
        return None
    if failure.where == IndexOutOfRange.__name__ and _is_empty(program, device):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's, about what a program does
        wrong = misstated(program, device)
    return None if "type" in wrong or failure.kind == f"wrong {''.join(wrong)}" else failure


def _is_empty(program: Program, device: str) -> bool:
    """Whether eager PyTorch returns a tensor without elements, for which it looks at no index."""
    names = namespace(program, device)
    results = [r for call in program.calls for r in observe(program, call, names).results]
    return any(isinstance(r, torch.Tensor) and not r.numel() for r in results)


def differs(program: Program, backend: str, device: str = "cpu") -> Failure | None:
    """Return the first difference between a backend and eager PyTorch."""
    torch._dynamo.reset()
    names = namespace(program, device)
    compiled = torch.compile(names["f"], backend=backend, dynamic=program.dynamic)
    before: list[tuple[Any, Any]] = []
    with warnings.catch_warnings(), exact_products():
        warnings.simplefilter("ignore")
        for number, call in enumerate(program.calls):
            expected = observe(program, call, names)
            at = f"call {number}, {call}: "
            try:
                found = observe(program, call, names, compiled)
            except Exception as error:
                return _raised(error, at)
            wrong = _first_difference(program, call, names, expected, found)
            if wrong is not None:
                return Failure(wrong[0].kind, wrong[0].what, at + wrong[1])
            for result, copy in before:
                if not _same_bits(result, copy):
                    text = "a result of an earlier call changed"
                    return Failure("overwritten", "", at + text)
            tensors = [r for r in found.results if isinstance(r, torch.Tensor)]
            before += [(r.detach(), r.detach().clone()) for r in tensors]
    return None


def _raised(error: Exception, at: str) -> Failure:
    inner = error
    while not isinstance(inner, MetaError):
        cause = getattr(inner, "inner_exception", None) or inner.__cause__
        if cause is None or cause is inner:
            break
        inner = cause
    kind = "refused" if isinstance(inner, MetaError) else "raw"
    trace = "".join(traceback.format_exception(inner, limit=-6))
    return Failure(kind, type(inner).__name__, at + trace)


def _first_difference(
    program: Program, call: Call, names: dict[str, Any], expected: Outcome, found: Outcome
) -> tuple[Seen, str] | None:
    noisy: list[list[Outcome]] = []

    def bounds(level: int) -> list[Outcome]:
        while len(noisy) <= level:
            count, amplitude = NOISES[len(noisy)]
            runs = [Noise(100 * len(noisy) + i, amplitude) for i in range(count)]
            noisy.append([observe(program, call, names, mode=n) for n in runs])
        return noisy[level]

    for i, (wanted, given) in enumerate(zip(expected.seen, found.seen, strict=False)):
        if wanted.what != given.what:
            return wanted, f"{wanted.what}, found {given.what}"
        text = _difference(wanted.value, given.value, lambda level, i=i: _at(bounds(level), i))
        if text is not None:
            return wanted, f"{wanted.what}: {text}"
    if len(expected.seen) != len(found.seen):
        what = f"{len(found.seen)} things are seen, not {len(expected.seen)}"
        return Seen("wrong type", what, None), what
    return None


def _at(runs: list[Outcome], place: int) -> list[Any]:
    return [r.seen[place].value for r in runs if place < len(r.seen)]


def _difference(wanted: Any, found: Any, noisy: Callable[[int], list[Any]]) -> str | None:
    """Return how a value differs; noisy: the value in the disturbed runs of a level."""
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, torch.Tensor):
        return None if wanted == found else f"expected {wanted}, found {found}"
    if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
        text = f"expected {wanted.dtype}{list(wanted.shape)}"
        return f"{text}, found {found.dtype}{list(found.shape)}"
    wrong = ~close(wanted, found, torch.zeros(()))
    for level in range(len(NOISES)):
        if not bool(wrong.any()):
            return None
        runs = [r for r in noisy(level) if isinstance(r, torch.Tensor) and r.shape == wanted.shape]
        wrong = ~close(wanted, found, bound_of(wanted, runs))
    if not bool(wrong.any()):
        return None
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements; at {list(place)} expected "
        f"{wanted[place].item()!r}, found {found[place].item()!r}\n"
        f"expected {wanted.flatten()[:12].tolist()}\nfound    {found.flatten()[:12].tolist()}"
    )


def bound_of(wanted: torch.Tensor, runs: list[torch.Tensor]) -> torch.Tensor:
    """Return by how much each element may differ; without bound where the runs do not agree."""
    w = wanted.double()
    most = torch.zeros_like(w)
    for run in runs:
        r = run.double()
        off = torch.where((r == w) | (r.isnan() & w.isnan()), 0.0, (r - w).abs())
        most = torch.maximum(most, off.nan_to_num(torch.inf, torch.inf))
    return 3 * most


def close(wanted: torch.Tensor, found: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    w, f = wanted.double(), found.double()
    same = (w == f) | (w.isnan() & f.isnan())
    if not wanted.is_floating_point():
        return same | (bound > 0)
    info = torch.finfo(wanted.dtype)
    near = (w - f).abs() <= bound + 8 * info.eps * w.abs() + 8 * info.tiny
    return same | near | bound.isinf()


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())
