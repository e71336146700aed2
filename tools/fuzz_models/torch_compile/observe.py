"""What a call of a program shows: values, gradients, what it wrote, and what shares memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from tools.fuzz_models.torch_compile.program import Call, Program, name


@dataclass(frozen=True)
class Seen:
    """One thing that is compared.

    kind: of the failure if it differs. what: text. value: a copy of a tensor, or a plain value.
    """

    kind: str
    what: str
    value: Any


@dataclass(frozen=True)
class Outcome:
    """What a call showed, and its results."""

    seen: list[Seen]
    results: list[Any]


def observe(
    program: Program,
    call: Call,
    names: dict[str, Any],
    function: Callable[..., Any] | None = None,
    mode: AbstractContextManager[Any] | None = None,
) -> Outcome:
    """Call a program; then write each result and argument, and look at all of them again.

    function: what is called in place of the program's own. mode: the context of the call and of
    the gradients.
    """
    given, leaves = names["inputs"](call.n, call.m, call.k, call.s)
    with nullcontext() if mode is None else mode:
        with torch.set_grad_enabled(program.train):
            results = list((function or names["f"])(*given))
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        seen = [s for i, r in enumerate(results) for s in _of_result(f"result {i}", r, tensors)]
        gradients = _gradients(results, leaves) if program.train else []
    for i, gradient in enumerate(gradients):
        seen.append(Seen("wrong value", f"gradient {i}", gradient))
    labels = [f"argument {name(i)} afterwards" for i in program.inputs]
    seen += [Seen("wrong value", w, _copy(x)) for w, x in zip(labels, tensors, strict=True)]
    _write_all(seen, [r for r in results if isinstance(r, torch.Tensor)], tensors)
    return Outcome(seen, results)


def _of_result(what: str, result: Any, given: list[torch.Tensor]) -> list[Seen]:
    if not isinstance(result, torch.Tensor):
        return [Seen("wrong value", what, result)]
    places = [i for i, x in enumerate(given) if x is result]
    return [
        Seen("wrong type", f"{what} is a tensor of", str(result.dtype)),
        Seen("wrong type", f"the shape of {what}", tuple(result.shape)),
        Seen("wrong value", what, _copy(result)),
        Seen("wrong type", f"requires_grad of {what}", result.requires_grad),
        Seen("wrong strides", f"the strides of {what}", strides_of(result.shape, result.stride())),
        Seen("wrong alias", f"the arguments that {what} is", places),
    ]


def strides_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of axes along which there is a step."""
    if 0 in shape:
        return ()
    return tuple(s if n > 1 else 0 for s, n in zip(strides, shape, strict=True))


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().clone()


def _gradients(results: list[Any], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    ends = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not ends or not leaves:
        return []
    dys = [((torch.arange(y.numel(), device=y.device) % 5 + 1) / 4).to(y.dtype) for y in ends]
    dys = [dy.reshape(y.shape) for dy, y in zip(dys, ends, strict=True)]
    found = torch.autograd.grad(ends, leaves, dys, allow_unused=True)
    return [
        torch.zeros_like(x, device="cpu") if g is None else _copy(g)
        for g, x in zip(found, leaves, strict=True)
    ]


def _write_all(seen: list[Seen], results: list[torch.Tensor], given: list[torch.Tensor]) -> None:
    """Write one after the other, and look what that changes elsewhere."""
    everything = [(f"result {i}", x) for i, x in enumerate(results)]
    everything += [(f"argument {i}", x) for i, x in enumerate(given)]
    for what, written in everything:
        try:
            _write(written.detach())
        except RuntimeError:  # elements of an expanded tensor are one
            seen.append(Seen("wrong alias", f"whether {what} can be written", False))
            continue
        for other, x in everything:
            text = f"{other} after a write to {what}"
            seen.append(Seen("wrong alias", text, _copy(x)))


def _write(x: torch.Tensor) -> None:
    if x.dtype == torch.bool:
        x.logical_not_()
    else:
        x.add_(1)
