"""Every overload of ATen that torch dispatches while it runs samples, forward and backward: its
converter is called eagerly with the same arguments, and its results are compared with torch's. So
each overload is checked with arguments that torch itself gives it, those of its backward formulas
too.

What is not compared: overloads that write to their arguments, which programs to be converted do not
contain; calls of sparse tensors, and of dtypes that arrays do not have; the values of random
numbers and of memory that is not initialised, whose shapes and dtypes are compared. Where an index
may name any of several equal elements, the elements are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import meta
from meta.base.dtype import FROM_TORCH
from meta.frontend.aten.graph import CHECKS, STRIDED, convert, is_compact
from meta.frontend.aten.registry import bind_arguments, name_of
from meta.frontend.core import Unconvertible
from tools.torch_samples.ambiguous import AMBIGUOUS, Unwritten, alike, led_to
from tools.torch_samples.compare import GRADIENT_TOLERANCE, compare, widened
from tools.torch_samples.entries import ENTRIES, TensorCall, differentiable, of_torch, run_entry
from tools.torch_samples.run import Outcome, walk

UNWRITTEN = {key for key, kind in AMBIGUOUS.items() if isinstance(kind, Unwritten)}
"""Overloads whose values are what was in memory before, by the names of their entries."""
TIED = {"kthvalue", "median.dim", "mode", "nanmedian.dim", "sort", "topk"}
"""Overloads that return elements and their places, which are those of any of equal elements."""
SIGNED = {"_linalg_eigh", "linalg_eigh"}
"""Overloads that return eigenvectors, which may have either sign."""


class Watch(TorchDispatchMode):
    """Compares every overload that torch dispatches, and whose name contains a text, with its
    converter. where: the sample that runs.
    """

    def __init__(self, key: str, wanted: str) -> None:
        super().__init__()
        self.key, self.wanted, self.where, self.outcomes = key, wanted, key, dict[str, Outcome]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a call on both sides, return torch's result."""
        kwargs = kwargs or {}
        name, before = name_of(func), pytree.tree_map_only(torch.Tensor, _copy, (args, kwargs))
        result = func(*args, **kwargs)
        # A copy of a tensor does not lie in memory as the tensor does.
        lies = name not in STRIDED or is_compact(args[0])
        tensors = [x for x in pytree.tree_leaves(before) if isinstance(x, torch.Tensor)]
        lies = lies and all(x.layout is torch.strided and x.dtype in FROM_TORCH for x in tensors)
        checked = lies and name not in CHECKS and not func._schema.is_mutable
        if checked and self.wanted in name:
            outcome = self.outcomes.setdefault(name, Outcome(name, entries={self.key}))
            with _disable_current_modes(), of_torch():
                plain = pytree.tree_map_only(torch.Tensor, _copy, result)
                self._run(outcome, func, *before, plain)
        return result

    def _run(self, outcome: Outcome, func: Any, args: Any, kwargs: Any, expected: Any) -> None:
        try:
            found = convert(func, *pytree.tree_map_only(torch.Tensor, meta.array, (args, kwargs)))
            outcome.ran += 1
            _compare(outcome.name, func, args, kwargs, found, expected)
        except Unconvertible as error:
            outcome.declined[error.why] += 1
        except Exception as error:
            # Whatever it is, it is what this converter does wrong, and the others go on.
            outcome.fail(self.where, error, *args, **kwargs)


def _compare(name: str, func: Any, args: Any, kwargs: Any, found: Any, expected: Any) -> None:
    """Raise AssertionError unless a converter gives what torch gives for a call."""
    random = torch.Tag.nondeterministic_seeded in func.tags
    if random or name.partition(".")[0] in UNWRITTEN:
        alike(found, expected)
        return
    if name == "unique_consecutive":
        # What is not asked for, torch gives of a vector in some programs only.
        asked = [True, *args[1:3]]
        asked += [False] * (3 - len(asked))
        found, expected = (
            [t for t, wanted in zip(both, asked, strict=True) if wanted]
            for both in (found, expected)
        )
    if name in TIED:
        indices, dim = found[1].torch(), bind_arguments(func, args, kwargs)[1].get("dim", -1)
        alike(indices, expected[1])
        found, expected = (found[0], led_to(args[0], indices, dim)), (expected[0], expected[0])
    if name in SIGNED:
        found = (found[0], meta.abs(found[1]))
        expected = (expected[0], expected[1].abs())

    def exact() -> Any:
        wide = pytree.tree_map(widened, (args, kwargs))
        return func(*wide[0], **wide[1])

    expected = pytree.tree_map_only(torch.Tensor, _in_memory, expected)
    compare(found, expected, GRADIENT_TOLERANCE, "result", exact)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of its own memory, which one of zeros that torch keeps as a mark has not."""
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor.detach().clone()


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that has elements: torch's zeros of its gradients may have none."""
    zero = tensor._is_zerotensor()
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if zero else tensor


def run(
    key: str,
    wanted: str,
    dtypes: tuple[torch.dtype, ...],
    limit: int | None,
    refused: Callable[[str], Any] = lambda _: None,
) -> dict[str, Outcome]:
    """Run the samples of an entry; return what came of the overloads it calls.

    refused: is told why torch does not run a sample itself.
    """
    entry, watch = ENTRIES[key], Watch(key, wanted)

    def check(sample: Any, dtype: torch.dtype, where: str) -> bool:
        watch.where = where
        with of_torch(), watch:
            try:
                run_entry(entry, TensorCall(sample), differentiable(key, dtype))
            # A sample that torch refuses itself, or an entry that it has for GPUs only.
            except (RuntimeError, NotImplementedError, AssertionError) as error:
                refused(next(iter(str(error).splitlines()), type(error).__name__))
        return True

    walk(key, dtypes, limit, check)
    return watch.outcomes
