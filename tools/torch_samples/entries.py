"""The entries of torch's operator database, their samples, and torch's own run of one."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tools.torch_samples.compare import widened

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
OTHERS = (torch.complex64, torch.complex128)


def key_of(entry: Any) -> str:
    """Return the name of an entry, with its variant behind a bar."""
    return f"{entry.name}|{entry.variant_test_name}" if entry.variant_test_name else entry.name


# Each time that samples are made, torch looks for a test of its own among the callers, and reads
# the source of all of them for it.
for module in (common_utils, core):
    module.extract_test_fn = lambda: None
ENTRIES: dict[str, Any] = {key_of(entry): entry for entry in op_db}


def dtypes_of(key: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes in which an entry is run: those of `DTYPES` that it takes on the CPU; if
    there is none, complex numbers; if these neither, what it takes of `DTYPES` on CUDA.
    """
    entry = ENTRIES[key]
    for wanted, device in ((DTYPES, "cpu"), (OTHERS, "cpu"), (DTYPES, "cuda")):
        found = tuple(d for d in wanted if entry.supports_dtype(d, device))
        if found:
            return found
    return ()


def differentiable(key: str, dtype: torch.dtype) -> bool:
    """Whether torch differentiates the entry in a dtype."""
    entry = ENTRIES[key]
    known = dtype.is_floating_point or dtype.is_complex
    if not (known and entry.supports_autograd):
        return False
    # An entry that has no dtype on the CPU is run as on CUDA, `dtypes_of` says.
    backward = {*entry.supported_backward_dtypes("cpu"), *entry.supported_backward_dtypes("cuda")}
    return dtype in backward


@contextmanager
def of_torch() -> Iterator[None]:
    """Ignore, while torch itself is running, that it warns of its own deprecations and of samples
    that its authors chose to be unusual.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def samples(key: str, dtype: torch.dtype) -> Iterator[Any]:
    """Yield the samples of an entry, the same ones in every run.

    Their tensors require a gradient where torch's own tests differentiate by them.
    """
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with of_torch():
        entry = ENTRIES[key]
        made = iter(entry.sample_inputs("cpu", dtype, requires_grad=differentiable(key, dtype)))
    while True:
        with of_torch():
            sample = next(made, None)
        if sample is None:
            return
        yield sample


def _is_written(value: Any) -> bool:
    """Whether a call may write to a value, as to running statistics."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not (value.requires_grad or value.is_conj() or value.is_neg())


class TensorCall:
    """A sample as a call of its tensors, in the places of which others may be given."""

    def __init__(self, sample: Any) -> None:
        call = (sample.input, *sample.args), dict(sample.kwargs)
        self._leaves, self._structure = pytree.tree_flatten(call)
        self._indices = [i for i, x in enumerate(self._leaves) if isinstance(x, torch.Tensor)]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The sample's own tensors."""
        return [self._leaves[i] for i in self._indices]

    def __call__(self, function: Callable[..., Any], tensors: Sequence[Any]) -> Any:
        """Call a function of the entry's arguments."""
        leaves = list(self._leaves)
        for i, tensor in zip(self._indices, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        return function(*args, **kwargs)

    def copied(self) -> TensorCall:
        """Return the call with copies, laid out alike, of what a call may write to."""
        own, memo = copy.copy(self), dict[int, Any]()
        own._leaves = [copy.deepcopy(x, memo) if _is_written(x) else x for x in self._leaves]
        return own

    def widened(self) -> TensorCall:
        """Return the call in float64."""
        wide = copy.copy(self)
        wide._leaves = list(map(widened, self._leaves))
        return wide


def run_entry(
    entry: Any, call: TensorCall, trains: bool, dy: Sequence[torch.Tensor] | None = None
) -> tuple[Any, Sequence[Any], Sequence[torch.Tensor]]:
    """Return the result of a call, the gradients of its tensors that require one, and those of
    the result that they are computed of: random ones where none are given. None if not ``trains``.
    """
    with _disable_current_modes():
        own = [t.detach().requires_grad_() if t.requires_grad else t for t in call.tensors]
    torch.manual_seed(0)
    result = call(entry, own)
    outputs = [t for t in pytree.tree_leaves(result) if getattr(t, "requires_grad", False)]
    inputs = [t for t in own if t.requires_grad]
    if not trains or not outputs or not inputs:
        return result, (), ()
    if dy is None:
        torch.manual_seed(1)
        with _disable_current_modes():
            dy = [torch.randn_like(t) for t in outputs]
    return result, torch.autograd.grad(outputs, inputs, dy, allow_unused=True), dy
