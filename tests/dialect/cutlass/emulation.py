"""Kernels of CUTLASS on the CPU: the same arguments, checked as its functions do, and computed by
torch in float64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from meta.base.dtype import TO_TORCH
from meta.dialect.core.preference import forget
from meta.dialect.cutlass import cutlass, launch, machine
from meta.dialect.cutlass.kernel import ALIGNMENT, FORMS, LANES, Kernel

ACTIVATIONS = {
    "identity": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
}


def gradient(activation: str, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Return the gradient of an activation of x."""
    leaf = x.clone().requires_grad_()
    [found] = torch.autograd.grad(ACTIVATIONS[activation](leaf), leaf, dy)
    return found


def results(kernel: Kernel, y: torch.Tensor, given: dict[str, torch.Tensor]) -> Any:
    """Return what an epilogue makes of a product: the first result and the second one, or None."""
    act = ACTIVATIONS[kernel.activation]
    form, b, c, r = kernel.form, given.get("b"), given.get("c"), given.get("r")
    if form.startswith("gated_") and form.endswith("dx"):
        before = given.get("g", given["s"])  # relu's gradient is the same by its result
        return y * given["s"], gradient(kernel.activation, before, y * given["c"])
    if form.startswith("gated"):
        first, second = y.chunk(2, -1)
        return None, act(first) * second if form == "gated" else first * act(second)
    if form == "act_dx":
        return gradient(kernel.activation, given["c"], y), None
    if form in ("rows", "columns", "rows_columns"):
        y = y if r is None else y * r[:, None]
        return (y if b is None else y * b), None
    y = y if b is None else y + b
    if form.removeprefix("bias_") in ("act", "act_saved"):
        return act(y), y
    if c is None:
        return y, None
    return (y * act(c) if "times" in form else y + c), y


class Emulated:
    """The function of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.calls = kernel, 0

    def __call__(
        self, x1: Any, x2: Any, out: Any, c: Any, epilogue: Any, scheduler: Any, groups: Any,
        *scales: Any,
    ) -> None:  # fmt: skip
        of = FORMS[self.kernel.form]
        self.calls += 1
        assert scales == (None, None) and scheduler[1:] == (None, launch.SWIZZLE, None, None, None)
        assert 0 < scheduler[0] <= 132 and epilogue[-2:] == (None, None)
        dtype = TO_TORCH[self.kernel.dtype]
        names = [name for name, kind in of.operands if kind != "c"]
        vectors = iter(self.kernel.vectors)
        given = dict(zip(names, epilogue, strict=False))
        a, b = self.factor(x1, dtype, 2), self.factor(x2, dtype, 3 if self.kernel.grouped else 2)
        a, b = (a.mT if self.kernel.t1 else a), (b.mT if self.kernel.t2 else b)
        kept = epilogue[len(names)] if of.kept or of.paired else None
        assert len(epilogue) == len(names) + (kept is not None) + 2
        assert (c is not None) == (("c", "c") in of.operands) and (out is None) == of.paired
        for name, kind in of.operands:
            if kind in ("c", "tile"):
                given[name] = self.factor(c if kind == "c" else given[name], dtype, 2)
                assert given[name].shape == (a.shape[0], b.shape[-1])
            else:
                extent = b.shape[-1] if kind == "row" else a.shape[0]
                given[name] = self.factor(given[name], TO_TORCH[next(vectors)], 1)
                assert given[name].shape == (extent,)
        y = self.grouped(a, b, groups) if self.kernel.grouped else a @ b
        for result, value in zip((out, kept), results(self.kernel, y, given), strict=True):
            if result is not None:
                self.factor(result, dtype, 2)
                assert result.shape == value.shape
                rows = groups[0][-1] if self.kernel.grouped else len(value)
                result[:rows] = value[:rows].to(dtype)

    def factor(self, x: torch.Tensor, dtype: torch.dtype, ndim: int) -> torch.Tensor:
        """Check a tensor as the kernel's function does."""
        assert x.dtype == dtype and x.ndim == ndim and x.data_ptr() % ALIGNMENT == 0
        assert x.is_contiguous() and (ndim == 1 or x.shape[-1] % LANES == 0)
        return x.double()

    def grouped(self, a: torch.Tensor, b: torch.Tensor, groups: Any) -> torch.Tensor:
        starts = groups[0].tolist()
        assert groups[1:] == (None, None, None) and groups[0].dtype == torch.int32
        assert starts[0] == 0 and len(starts) == len(b) + 1
        y = torch.full((a.shape[0], b.shape[-1]), torch.nan, dtype=torch.float64)
        for i, one in enumerate(b):
            y[starts[i] : starts[i + 1]] = a[starts[i] : starts[i + 1]] @ one
        return y


class EmulatedEnds:
    """What `meta.dialect.cutlass.launch.Ends` does."""

    def __init__(self, groups: int, out: tuple[int, ...], dtype: str) -> None:
        self.groups, self.out, self.dtype = groups, out, dtype

    def __call__(self, offs: torch.Tensor, out: torch.Tensor) -> Any:
        assert offs.shape == (self.groups,) and offs.dtype == TO_TORCH[self.dtype]
        assert tuple(out.shape) == self.out
        out[offs[-1] :] = 0
        starts = torch.cat([offs.new_zeros(1), offs]).int()
        return starts, None, None, None


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the dialect run on the CPU; the fixture's value is the list of the kernels made."""
    made: list[Emulated] = []

    def function(kernel: Kernel) -> Emulated:
        made.append(Emulated(kernel))
        return made[-1]

    def library(kernel: Kernel) -> bytes:
        return repr(kernel).encode()

    def loaded(content: bytes, name: str) -> Emulated:
        [kernel] = [one.kernel for one in made if repr(one.kernel).encode() == content]
        assert name == machine.symbol(kernel)
        return function(kernel)

    for name, value in (("function", function), ("compiled", library), ("loaded", loaded)):
        monkeypatch.setattr(machine, name, value)
    monkeypatch.setattr(launch, "Ends", EmulatedEnds)
    monkeypatch.setattr(cutlass, "unavailable", None)
    monkeypatch.setattr(cutlass, "devices", ("cpu",))
    forget()
    machine.libraries.forget()
    yield made
    forget()
