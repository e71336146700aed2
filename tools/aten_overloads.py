"""The command: ``python -m tools.aten_overloads``.

Runs torch's own operator samples, forward and backward, and looks at every overload of ATen that
torch dispatches on the way: its converter is called eagerly with the same arguments, and its
results are compared with torch's. So each overload is checked with arguments that torch itself
gives it, those of its backward formulas too.

What is not compared: overloads that write to their arguments, which programs to be converted do not
contain; calls of sparse tensors, and of dtypes that arrays do not have; the values of random
numbers and of memory that is not initialised, whose shapes and dtypes are compared. Where an index
may name any of several equal elements, the elements are compared.

Exit status: 0 no overload fails, 1 some do, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import meta
from meta.base.dtype import FROM_TORCH
from meta.frontend.aten import aten
from meta.frontend.aten.graph import CHECKS, STRIDED, convert, is_compact
from meta.frontend.aten.registry import bind_arguments, name_of
from meta.frontend.core import Unconvertible
from tools.processes import in_order
from tools.torch_samples.command import chosen_dtypes, entries_of, parser_of
from tools.torch_samples.compare import GRADIENT_TOLERANCE, compare, widened
from tools.torch_samples.entries import (
    ENTRIES,
    differentiable,
    dtypes_of,
    of_torch,
    samples,
)

WITHOUT_VALUES = {"empty.memory_format", "empty_like", "empty_strided", "new_empty"} | {
    "new_empty_strided",
    "empty_permuted",
}
TIED = {"kthvalue", "median.dim", "mode", "nanmedian.dim", "sort", "topk"}
"""Overloads that return elements and their places, which are those of any of equal elements."""
SIGNED = {"_linalg_eigh", "linalg_eigh"}
"""Overloads that return eigenvectors, which may have either sign."""


@dataclass
class Overload:
    """What came of the calls of one overload.

    ``declined``: how many calls the converter refuses, by reason; ``failures``: what went wrong;
    ``entries``: of which entries of torch's database.
    """

    name: str
    ran: int = 0
    declined: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    entries: set[str] = field(default_factory=set)

    def add(self, other: Overload) -> None:
        """Add what came of further calls."""
        self.ran += other.ran
        self.declined += other.declined
        self.failures += other.failures
        self.entries |= other.entries

    def record(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return vars(self) | {"declined": dict(self.declined), "entries": sorted(self.entries)}


class Watch(TorchDispatchMode):
    """Compares every overload that torch dispatches with its converter."""

    def __init__(self, entry: str, wanted: str) -> None:
        super().__init__()
        self.entry, self.wanted, self.found = entry, wanted, dict[str, Overload]()

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
            into = self.found.setdefault(name, Overload(name))
            into.entries.add(self.entry)
            with _disable_current_modes(), of_torch():
                plain = pytree.tree_map_only(torch.Tensor, _copy, result)
                self._check(into, func, *before, plain)
        return result

    def _check(self, into: Overload, func: Any, args: Any, kwargs: Any, expected: Any) -> None:
        try:
            ours = pytree.tree_map_only(torch.Tensor, meta.array, (args, kwargs))
            found = convert(func, *ours)
            into.ran += 1
            random = torch.Tag.nondeterministic_seeded in func.tags
            if random or into.name in WITHOUT_VALUES:
                found, expected = (
                    pytree.tree_map(lambda x: (tuple(x.shape), str(x.dtype).split(".")[-1]), t)
                    for t in (found, expected)
                )
                assert found == expected, f"{expected} expected, found {found}"
                return

            if into.name == "unique_consecutive":
                # What is not asked for, torch gives of a vector in some programs only.
                asked = [True, *args[1:3]]
                asked += [False] * (3 - len(asked))
                found, expected = (
                    [t for t, wanted in zip(both, asked, strict=True) if wanted]
                    for both in (found, expected)
                )
            if into.name in TIED:
                found, expected = _by_elements(func, args, kwargs, found, expected)
            if into.name in SIGNED:
                found = (found[0], meta.abs(found[1]))
                expected = (expected[0], expected[1].abs())

            def exact() -> Any:
                wide = pytree.tree_map(widened, (args, kwargs))
                return func(*wide[0], **wide[1])

            expected = pytree.tree_map_only(torch.Tensor, _in_memory, expected)
            compare(found, expected, GRADIENT_TOLERANCE, "result", exact)
        except Unconvertible as error:
            into.declined[error.why] += 1
        except Exception as error:
            # Whatever it is, it is what this converter does wrong, and the others go on.
            into.failures.append(f"{self.entry}: {type(error).__name__}: {error}\n  {_shown(args)}")


def _by_elements(func: Any, args: Any, kwargs: Any, found: Any, expected: Any) -> Any:
    """Return both results with the elements in places of their indices."""
    x, options = args[0], bind_arguments(func, args, kwargs)[1]
    places = found[1].torch()
    assert (places.dtype, places.shape) == (expected[1].dtype, expected[1].shape), "the indices"
    dim = options.get("dim", -1)
    if x.ndim == 0 or x.ndim == places.ndim:
        elements = x.gather(dim, places)
    else:
        elements = x.gather(dim, places.unsqueeze(dim)).squeeze(dim)
    return (found[0], elements), (expected[0], expected[0])


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of its own memory, which one of zeros that torch keeps as a mark has not."""
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return tensor.detach().clone()


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that has elements: torch's zeros of its gradients may have none."""
    zero = tensor._is_zerotensor()
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if zero else tensor


def _shown(args: Any) -> str:
    def brief(x: Any) -> Any:
        return f"{str(x.dtype)[6:]}{list(x.shape)}"

    return f"of {pytree.tree_map_only(torch.Tensor, brief, args)}"


def run(
    key: str,
    wanted: str,
    dtypes: tuple[torch.dtype, ...],
    limit: int | None,
    refused: Callable[[str], Any] = lambda _: None,
) -> dict[str, Overload]:
    """Run the samples of an entry; return what came of the overloads it calls.

    refused: is told why torch does not run a sample itself.
    """
    entry, watch = ENTRIES[key], Watch(key, wanted)
    for dtype in dtypes_of(key):
        if dtypes and dtype not in dtypes:
            continue
        for number, sample in enumerate(samples(key, dtype)):
            if limit is not None and number >= limit:
                break
            with of_torch(), watch:
                try:
                    result = entry(sample.input, *sample.args, **sample.kwargs)
                    if differentiable(key, dtype):
                        _backward(result, sample)
                # A sample that torch refuses itself, or an entry that it has for GPUs only.
                except (RuntimeError, NotImplementedError, AssertionError) as error:
                    refused(next(iter(str(error).splitlines()), type(error).__name__))
    return watch.found


def _backward(result: Any, sample: Any) -> None:
    """Take gradients of what is differentiable of a result by what requires one."""
    outputs = [t for t in pytree.tree_leaves(result) if getattr(t, "requires_grad", False)]
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    inputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if outputs and inputs:
        with _disable_current_modes():
            dy = [torch.randn_like(t) for t in outputs]
        torch.autograd.grad(outputs, inputs, dy, allow_unused=True)


def _run(arguments: tuple[Any, ...]) -> dict[str, Overload]:
    with meta.dialect.prefer("torch"):
        return run(*arguments)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = parser_of(
        "tools.aten_overloads",
        "Compare converters of ATen's overloads with torch, on torch's own samples.",
        "overload",
    )
    top.add_argument("--filter", default="", metavar="TEXT", help="overloads with it in the name")
    top.add_argument("--entry", default="", metavar="TEXT", help="entries with it in the name")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = parser()
    options = arguments.parse_args(argv)
    keys, dtypes = entries_of(arguments, options, options.entry), chosen_dtypes(options)
    work = [(key, options.filter, dtypes, options.samples) for key in keys]
    total: dict[str, Overload] = {}
    for found in in_order(_run, work, options.jobs, "entries"):
        for name, overload in found.items():
            total.setdefault(name, Overload(name)).add(overload)
    overloads = sorted(total.values(), key=lambda one: (-len(one.entries), one.name))
    if options.json:
        print(json.dumps([one.record() for one in overloads], indent=1))
    else:
        _report(overloads)
    return int(any(one.failures for one in overloads))


def _report(overloads: list[Overload]) -> None:
    for one in overloads:
        if one.failures:
            print(f"FAILED {one.name}: {len(one.failures)} calls, first of {one.failures[0]}")
    for one in overloads:
        if one.name in aten and one.declined:
            print(f"declined {one.name} ({sum(one.declined.values())} of {one.ran} calls)")
            for why, count in one.declined.most_common(3):
                print(f"    {count} times: {why}")
    missing = [one for one in overloads if one.name not in aten]
    if missing:
        print(f"without converter: {', '.join(f'{m.name} ({len(m.entries)})' for m in missing)}")
    good = sum(1 for one in overloads if one.name in aten and not one.failures)
    calls = sum(one.ran for one in overloads)
    print(f"{len(overloads)} overloads: {good} agree with torch in {calls} calls")


if __name__ == "__main__":
    sys.exit(main())
