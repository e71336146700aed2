"""Comparing trainings by `training_step` with eager PyTorch's."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from meta.base.errors import MetaError
from tools.fuzz_models.face import Failure
from tools.fuzz_models.torch_compile.check import bound_of, close, exact_products
from tools.fuzz_models.torch_compile.noise import CompactGradients, Noise
from tools.fuzz_models.torch_compile.observe import strides_of
from tools.fuzz_models.training_step.program import Program, observe

NOISES = ((2, 1.0), (8, 4.0), (24, 16.0))
"""How many disturbed runs there are, and how disturbed: more if the first find a fault."""
FLOORS = {"Muon": 2.0**-3, "autocast": 2.0**-8, "float64": 1e-6, "float32": 1e-7}
"""What may differ without noise: PyTorch's Muon computes in bfloat16, what autocast casts is
ours, and learning rates are float32.
"""


@dataclass(frozen=True)
class Way:
    """How programs are run."""

    device: str = "cpu"

    def __str__(self) -> str:
        return self.device


def check(program: Program, device: str = "cpu") -> Failure | None:
    """Run a program; return what is wrong, None if nothing is."""
    with warnings.catch_warnings(), exact_products():
        warnings.simplefilter("ignore")
        expected = observe(program, device, mode=CompactGradients)
        try:
            found = observe(program, device, ours=True)
        except MetaError as error:
            text = "".join(traceback.format_exception(error, limit=-6))
            return Failure("refused", type(error).__name__, text)
        except Exception as error:
            text = "".join(traceback.format_exception(error, limit=-8))
            return Failure("raw", type(error).__name__, text)
        return _first_difference(program, device, expected, found)


def _first_difference(
    program: Program, device: str, expected: list[Any], found: list[Any]
) -> Failure | None:
    what = [w for w, _ in expected]
    if what != [w for w, _ in found]:
        more = sorted(set(what) ^ {w for w, _ in found})
        return Failure("wrong type", "", f"only one of them has: {', '.join(more[:8])}")
    traits = f"{program.optimizer} {program.options} {program.dtype}"
    floor = max((least for name, least in FLOORS.items() if name in traits), default=0.0)
    bounds = [torch.full((), floor) for _ in expected]
    wrong = _wrong(expected, found, bounds)
    for level, (count, amplitude) in enumerate(NOISES):
        if wrong is None or wrong.kind == "wrong type":
            return wrong
        noises = (Noise(100 * level + i, amplitude) for i in range(count))
        runs = [observe(program, device, mode=lambda n=n: n) for n in noises]
        bounds = [
            torch.maximum(b, bound_of(e, [r[i][1] for r in runs]))
            if isinstance(e, torch.Tensor)
            else b
            for i, (b, (_, e)) in enumerate(zip(bounds, expected, strict=True))
        ]
        wrong = _wrong(expected, found, bounds)
    return wrong


def _wrong(expected: list[Any], found: list[Any], bounds: list[torch.Tensor]) -> Failure | None:
    for (what, e), (_, f), bound in zip(expected, found, bounds, strict=True):
        if not isinstance(e, torch.Tensor) or not isinstance(f, torch.Tensor):
            if e is not f and e != f:
                return Failure("wrong value", what, f"{what}: expected {e}, found {f}")
            continue
        own, other = ((x.dtype, x.shape, strides_of(x.shape, x.stride())) for x in (e, f))
        if own != other:
            return Failure("wrong type", what, f"{what}: expected {own}, found {other}")
        wrong = ~close(e, f, bound)
        if bool(wrong.any()):
            at = tuple(wrong.nonzero()[0].tolist())
            least = bound.expand(e.shape)[at].item()
            text = (
                f"{what}: {int(wrong.sum())} of {wrong.numel()} elements; at {list(at)} expected "
                f"{e[at].item()!r}, found {f[at].item()!r}, bound {least:.3g}"
            )
            return Failure("wrong value", what, text)
    return None
