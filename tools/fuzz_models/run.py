"""Running a program in one way, and comparing what comes of it with what it means."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import meta
from meta import op
from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.base.errors import GradientError, MetaError
from meta.model import trace
from meta.passes import autodiff
from tools.fuzz_models.evaluate import (
    REFUSED,
    Evaluation,
    Expected,
    Noise,
    Value,
    bounded,
    evaluate,
    expected,
)
from tools.fuzz_models.face import Failure
from tools.fuzz_models.precision import is_float
from tools.fuzz_models.program import Input, Program, source, tensor_of

LEVELS = ("vm0", "vm1", "vm2", "vm3")
GRADIENTS = ("tape", "traced_gradient")
EXECUTORS = ("eager", "interpreter", *LEVELS, "dynamic", *GRADIENTS, "autocast")
"""The ways to run a program."""
DIALECTS = ("default", "tvm", "torch")
"""The dialects to prefer; "default" prefers none."""
AUTOCAST = "bfloat16"
SIZES = (1, 3, 17, 40)
"""Extents with which a program of a symbolic dimension is called, beside its own."""


@dataclass(frozen=True)
class Way:
    """How a program is run."""

    executor: str
    dialect: str = "default"
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.executor} {self.dialect} {self.device}"

    @property
    def gradient(self) -> bool:
        """Whether it is about gradients."""
        return self.executor in GRADIENTS


@dataclass(frozen=True)
class Meaning:
    """What a run must give: the results, then the arguments as it leaves them."""

    results: list[Expected]
    arguments: list[Expected]


SEEDS = (11, 12, 13)
SURE = tuple(range(40))


def meaning(program: Program, way: Way, sure: bool = False) -> Meaning:
    """Evaluate a program. sure: with many, larger disturbances: what is off then is wrong."""
    floor = AUTOCAST if way.executor == "autocast" else None
    amplitude = 8.0 if sure else 4.0
    quiet = evaluate(program)
    exact = quiet.exact if floor is None else [False] * len(quiet.exact)
    noisy = [
        evaluate(program, Noise(s, amplitude, floor), exact) for s in (SURE if sure else SEEDS)
    ]

    def numbers(which: Sequence[int]) -> list[Expected]:
        values = [quiet.values[i] for i in which]
        if floor is not None:  # what is exact elsewhere is rounded
            values = [replace(v, cell=replace(v.cell, exact=False)) for v in values]
        found = expected(values, [[e.values[i] for i in which] for e in noisy])
        return found if floor is None else [_loosened(f) for f in found]

    return Meaning(numbers(program.results), numbers(tuple(program.inputs)))


def _loosened(e: Expected) -> Expected:
    """Under autocast what is exact elsewhere is rounded."""
    if not is_float(e.dtype):
        return e
    unit = 2.0**-6
    return Expected(e.dtype, e.value, e.bound + unit * e.value.abs().nan_to_num(0, 0, 0))


def gradient_of(program: Program) -> torch.Tensor:
    """Return the gradient of the result with which gradients are taken."""
    quiet = evaluate(program).values[program.results[0]]
    generator = torch.Generator().manual_seed(7)
    return torch.randint(1, 9, quiet.shape, generator=generator).double() / 8


def depends(program: Program) -> bool:
    """Whether the result depends on an input by which it can be differentiated."""
    _, found = _torch_gradients(program, gradient_of(program), None, None)
    return found.values[program.results[0]].tensor.requires_grad


def wanted_gradients(program: Program) -> list[int]:
    """Return the inputs by which the result is differentiated."""
    return [i for i, x in program.inputs.items() if is_float(x.dtype)]


def gradient_meaning(program: Program, sure: bool = False) -> list[Expected]:
    """Return the gradients of the result by the floating point inputs."""
    dy = gradient_of(program)
    amplitude = 8.0 if sure else 4.0
    quiet, quiet_evaluation = _torch_gradients(program, dy, None, None)
    noisy = [
        _torch_gradients(program, dy, Noise(s, amplitude, None, True), quiet_evaluation.exact)[0]
        for s in (SURE if sure else SEEDS)
    ]
    return [
        bounded(g, [n[i] for n in noisy], program.inputs[number].dtype, False)
        for i, (number, g) in enumerate(zip(wanted_gradients(program), quiet, strict=True))
    ]


@torch.enable_grad()
def _torch_gradients(
    program: Program, dy: torch.Tensor, noise: Noise | None, exact: list[bool] | None
) -> tuple[list[torch.Tensor], Evaluation]:
    found = Evaluation(noise, [] if exact is None else exact)
    for number, given in program.inputs.items():
        found.add_input(number, given)
    leaves = [found.values[i].cell.data.requires_grad_(True) for i in wanted_gradients(program)]
    for step in program.steps:
        found.run(step)
    result = found.values[program.results[0]].tensor
    if result.requires_grad:
        grads = torch.autograd.grad(result, leaves, dy, allow_unused=True)
    else:
        grads = (None,) * len(leaves)
    shapes = [program.inputs[i].shape for i in wanted_gradients(program)]
    return [
        (torch.zeros_like(x) if g is None else g).reshape(s)
        for g, x, s in zip(grads, leaves, shapes, strict=True)
    ], found


# Running.


def function_of(program: Program, device: str = "cpu") -> Callable[..., Any]:
    """Return the program as a Python function on arrays."""
    names: dict[str, Any] = {"op": op, "meta": meta}
    exec(compile(source(program, device), "<program>", "exec"), names)
    function: Callable[..., Any] = names["model"]
    return function


def arrays(program: Program, device: str) -> list[meta.ndarray]:
    """Return fresh arguments."""
    return [meta.ndarray(tensor_of(x, device)) for x in program.inputs.values()]


@contextlib.contextmanager
def _preferred(dialect: str) -> Iterator[None]:
    with contextlib.nullcontext() if dialect == "default" else meta.dialect.prefer(dialect):
        yield


class Failed(Exception):
    """Carries a failure out of a run."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


def check(program: Program, way: Way) -> Failure | None:
    """Run a program; return what is wrong, None if nothing is."""
    try:
        with _preferred(way.dialect), torch.set_grad_enabled(way.executor == "tape"):
            if way.executor == "dynamic":
                _check_dynamic(program, way)
            else:
                (_check_gradients if way.gradient else _check_values)(program, way)
    except Failed as found:
        return found.failure
    except MetaError as error:
        return Failure(
            "refused", type(error).__name__, f"{error}\n{traceback.format_exc(limit=-6)}"
        )
    except Exception as error:
        return Failure("raw", type(error).__name__, traceback.format_exc(limit=-8))
    return None


def _check_values(program: Program, way: Way) -> None:
    run = runner(program, way)
    given = arrays(program, way.device)
    found = _flat(run(*given))
    _compare_all(program, way, found, given)
    if way.executor in LEVELS:
        copies = [t.detach().torch().clone() for t in found]
        second = arrays(program, way.device)
        again = _flat(run(*second))
        _compare_all(program, way, again, second)
        shared = {a.torch().untyped_storage().data_ptr() for a in given}
        for i, (copy, first) in enumerate(zip(copies, found, strict=True)):
            own = first.torch().untyped_storage().data_ptr() not in shared
            if own and not torch.equal(_bits(copy), _bits(first.detach().torch())):
                text = f"result {i} of the first call changed in the second"
                raise Failed(Failure("overwritten", "", text, i))


def symbolic_extent(program: Program) -> int | None:
    """Return the extent that is symbolic: the commonest of the inputs, above 1."""
    extents = Counter(n for x in program.inputs.values() for n in x.shape if n > 1)
    return max(extents, key=lambda n: (extents[n], n)) if extents else None


def symbolic_types(program: Program) -> list[str]:
    """Return the types of the inputs, with "n" for the symbolic extent."""
    own = symbolic_extent(program)
    return [
        f"{x.dtype}[{', '.join('n' if n == own else str(n) for n in x.shape)}]"
        for x in program.inputs.values()
    ]


def with_extent(program: Program, extent: int) -> Program:
    """Return the program with inputs of another extent, which repeat the elements of its own."""
    own = symbolic_extent(program)

    def changed(x: Input) -> Input:
        shape = tuple(extent if n == own else n for n in x.shape)
        count = math.prod(shape)
        places = torch.arange(count) % max(x.values.numel(), 1)
        return replace(x, shape=shape, values=x.values[places] if count else x.values[:0])

    return replace(program, inputs={i: changed(x) for i, x in program.inputs.items()})


def _check_dynamic(program: Program, way: Way) -> None:
    """Compile with a symbolic dimension, and call with several extents.

    A program that needs to know the extent is refused by an error when it is traced or compiled,
    as it should be.
    """
    own = symbolic_extent(program)
    if own is None:
        return
    types = [meta.ir.parse_type(t) for t in symbolic_types(program)]
    try:
        run = meta.vm.compile(
            trace(function_of(program, way.device)),
            *types,
            dims={"n": (1, 100_000)},
            device=way.device,
        )
    except MetaError:
        return
    for extent in (own, *SIZES, own):
        sized = with_extent(program, extent)
        try:
            evaluate(sized)
        except REFUSED:
            continue  # it does not broadcast, say, with another extent
        given = arrays(sized, way.device)
        _compare_all(sized, way, _flat(run(*given)), given)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.nan_to_num(12345.0) if x.is_floating_point() else x


def runner(program: Program, way: Way) -> Callable[..., Any]:
    """Return what runs the program on arrays."""
    function = function_of(program, way.device)
    if way.executor == "eager":
        return function
    traced = trace(function)
    if way.executor == "interpreter":
        return traced
    if way.executor == "autocast":

        def run(*given: Any) -> Any:
            with meta.amp.autocast_scope(AUTOCAST):
                return function(*given)

        return run
    level = int(way.executor[-1])
    return meta.vm.compile(traced, *arrays(program, way.device), device=way.device, opt_level=level)


def _flat(value: Any) -> list[Any]:
    return (
        [v for item in value for v in _flat(item)] if isinstance(value, tuple | list) else [value]
    )


def _compare_all(program: Program, way: Way, found: list[Any], given: list[Any]) -> None:
    plain = meaning(program, way)
    sure: Meaning | None = None
    pairs = [(f"result {i}", a, i) for i, a in enumerate(found)]
    pairs += [
        (f"argument x{n} afterwards", a, None) for n, a in zip(program.inputs, given, strict=True)
    ]
    loose = way.executor == "autocast"
    if len(found) != len(plain.results):
        raise Failed(Failure("wrong type", "", f"{len(found)} results, not {len(plain.results)}"))
    for k, (what, array, result) in enumerate(pairs):
        wrong = compare(array, [*plain.results, *plain.arguments][k], loose)
        if wrong is not None and wrong[0] == "wrong value":
            sure = sure or meaning(program, way, sure=True)
            wrong = compare(array, [*sure.results, *sure.arguments][k], loose)
        if wrong is not None:
            raise Failed(Failure(wrong[0], "", f"{what}: {wrong[1]}", result))


def compare(array: Any, wanted: Expected, loose: bool = False) -> tuple[str, str] | None:
    """Return the kind of difference and a text, None if an array is as expected."""
    found = array.detach().torch().cpu()
    dtype = FROM_TORCH[found.dtype]
    right = dtype == wanted.dtype or (loose and is_float(dtype) and is_float(wanted.dtype))
    if not right or found.shape != wanted.value.shape:
        text = f"{dtype}{list(found.shape)}, expected {wanted.dtype}{list(wanted.value.shape)}"
        return "wrong type", text
    if not is_float(wanted.dtype):
        wrong = (found.long() != wanted.value.long()) & (wanted.bound == 0)
    else:
        x = found.double()
        finite = wanted.value.isfinite() & x.isfinite()
        same = torch.where(
            finite,
            (x - wanted.value).abs() <= wanted.bound,
            (x == wanted.value) | (x.isnan() & wanted.value.isnan()),
        )
        wrong = ~same & wanted.bound.isfinite()
    if not bool(wrong.any()):
        return None
    places = wrong.nonzero()
    lines = [
        f"{len(places)} of {found.numel()} elements of {wanted.dtype}{list(found.shape)} are wrong"
    ]
    for place in places[:4].tolist():
        at = tuple(place)
        lines.append(
            f"  at {list(at)}: {found[at].item()!r}, expected {wanted.value[at].item()!r} "
            f"within {wanted.bound[at].item():.3g}"
        )
    return "wrong value", "\n".join(lines)


def _check_gradients(program: Program, way: Way) -> None:
    numbers = wanted_gradients(program)
    places = [list(program.inputs).index(i) for i in numbers]
    result = evaluate(program).values[program.results[0]]
    dy = meta.ndarray(gradient_of(program).to(TO_TORCH[result.dtype]).to(way.device))
    given = arrays(program, way.device)
    function = function_of(program, way.device)
    if way.executor == "tape":
        for place in places:
            given[place].requires_grad = True
        (y,) = _flat(function(*given))
        if y.requires_grad:
            y.backward(dy)
        found = [given[p].grad for p in places]
    else:
        module = trace(lambda *xs: function(*xs)[0]).program(*given).module
        try:
            backward = autodiff(module, wrt=places)
        except GradientError:
            if depends(program):
                raise
            return  # nothing to differentiate, as it says
        run = meta.vm.compile(backward, dy, *given, device=way.device, opt_level=3)
        _, *found = _flat(run(dy, *arrays(program, way.device)))
    plain = gradient_meaning(program)
    sure: list[Expected] | None = None
    for i, (number, array) in enumerate(zip(numbers, found, strict=True)):
        if array is None:
            given_ = program.inputs[number]
            array = meta.ndarray(torch.zeros(given_.shape, dtype=TO_TORCH[given_.dtype]))
        wrong = compare(array, plain[i])
        if wrong is not None and wrong[0] == "wrong value":
            sure = sure or gradient_meaning(program, sure=True)
            wrong = compare(array, sure[i])
        if wrong is not None:
            raise Failed(Failure(wrong[0], "", f"the gradient of x{number}: {wrong[1]}"))


__all__ = ["DIALECTS", "EXECUTORS", "Value", "Way", "check"]
