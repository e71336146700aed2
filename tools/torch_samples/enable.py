"""Samples as they are and once more inside of `meta.interop.torch.enable`: values, dtypes, shapes,
strides and gradients are the same. Dispatch prefers a dialect. The default, "mirror", has the
kernels of the dialect "torch" under another name: a call of "torch" itself would go to PyTorch's
own kernel at once, and test nothing.

What is not served goes to PyTorch's kernels, as for users; the reasons are counted, and `page` is a
page of the documentation about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from textwrap import wrap
from typing import Any

import torch
from torch.utils import _pytree as pytree

import meta
import meta.interop.torch as interop
from meta.dialect import Dialect
from meta.dialect.torch import torch as aten_dialect
from tests.registered import remove_dialects
from tools.torch_samples.ambiguous import AMBIGUOUS, Unwritten
from tools.torch_samples.compare import GRADIENT_TOLERANCE, compare, widened
from tools.torch_samples.entries import ENTRIES, TensorCall, differentiable, of_torch, run_entry
from tools.torch_samples.run import Outcome, walk


@contextmanager
def mirror() -> Iterator[Dialect]:
    """Add the dialect "mirror" in a block. Nobody chooses it who does not prefer it."""
    made = Dialect("mirror", devices=("cpu",), plevel=1, declines=aten_dialect.declines)
    try:
        aten_dialect.load()
        for implementation in list(aten_dialect.ops.values()):
            made.op(implementation.base)(implementation.make)
        yield made
    finally:
        remove_dialects(made)


def check_enabled(entry: Any, call: TensorCall, trains: bool, expected: Any, found: Any) -> None:
    """Raise AssertionError where the results inside of `enable` are others than PyTorch's."""
    *expected, dy = expected

    def exact(which: int) -> Any:
        return run_entry(entry, call.widened(), trains, list(map(widened, dy)))[which]

    names = "result", "gradient"
    for i, (what, ours, theirs) in enumerate(zip(names, found, expected, strict=True)):
        pairs = [pytree.tree_leaves(ours), pytree.tree_leaves(theirs)]
        for a, b in zip(*pairs, strict=True):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and _is_dense(b):
                assert a.stride() == b.stride(), f"{what}: strides {a.stride()}, not {b.stride()}"
        if not _is_dense(*pairs[1]):
            continue
        ours, theirs = (pytree.tree_map_only(torch.Tensor, _plain, s) for s in (ours, theirs))
        compare(ours, theirs, GRADIENT_TOLERANCE, what, partial(exact, i))


def _is_dense(*values: Any) -> bool:
    return all(v.layout is torch.strided for v in values if isinstance(v, torch.Tensor))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg()


def run(
    key: str, dtypes: tuple[torch.dtype, ...], limit: int | None, dialect: str = "mirror"
) -> Outcome:
    """Run the samples of an entry that torch runs itself, and defines the results of."""
    entry, outcome = ENTRIES[key], Outcome(key)
    expected: list[tuple[str, Any, TensorCall, bool, Any]] = []

    def note(sample: Any, dtype: torch.dtype, where: str) -> bool:
        trains = differentiable(key, dtype)
        # Torch itself refuses some samples.
        with of_torch(), suppress(RuntimeError, NotImplementedError, AssertionError):
            call = TensorCall(sample).copied()
            result = run_entry(entry, TensorCall(sample), trains)
            expected.append((where, sample, call, trains, result))
        return True

    def check_all() -> None:
        """To enable takes longer than a sample: all of them run inside of one block."""
        found: list[Any] = []
        with meta.dialect.prefer(dialect), interop.enable(device="cpu"), of_torch():
            for _, _, call, trains, _ in expected:
                try:
                    found.append(run_entry(entry, call, trains)[:2])
                except Exception as error:
                    found.append(error)
        for (where, sample, call, trains, result), ours in zip(expected, found, strict=True):
            outcome.ran += 1
            try:
                if isinstance(ours, Exception):
                    raise ours
                with of_torch():
                    check_enabled(entry, call, trains, result, ours)
            except Exception as error:
                # Whatever it is, it is what is wrong here, and the others go on.
                outcome.fail(where, error, sample.input, *sample.args, **sample.kwargs)

    interop.reset_report()
    with mirror() if dialect == "mirror" else nullcontext():
        if not isinstance(AMBIGUOUS.get(key), Unwritten):
            walk(key, dtypes, limit, note)
            check_all()
    report = interop.report()
    for counter, counts in ((outcome.served, report.served), (outcome.declined, report.refused)):
        counter.update({f"{name}: {other}": count for (name, other), count in counts.items()})
    return outcome


def page(total: Outcome, command: Sequence[str], entries: int) -> str:
    """Return the page of the documentation about what is not served, which a command wrote."""
    reasons: dict[str, Counter[str]] = {}
    for text, count in total.declined.items():
        name, _, why = text.partition(": ")
        reasons.setdefault(_general(why), Counter())[name] += count
    served, refused = total.served.total(), total.declined.total()
    lines = [
        "# What `meta.interop.torch.enable` does not serve",
        "",
        "Written by",
        "",
        "```bash",
        *_command(command),
        "```",
        "",
        "which runs PyTorch's operator samples, forward and backward, as they are and inside of",
        "[`enable`](howto/enable.md), and compares values, gradients, dtypes, shapes and strides.",
        "",
        f"With PyTorch {torch.__version__.split('+')[0]} on the CPU, {total.ran:,} samples of",
        f"{entries} entries ran, {len(total.failures)} differ. {len(interop.names())} overloads",
        f"were enabled; {served:,} calls were served, and {refused:,} went to PyTorch's kernels:",
        "",
        "| calls | reason | overloads |",
        "| --- | --- | --- |",
    ]
    for why, names in sorted(reasons.items(), key=lambda r: (-sum(r[1].values()), r[0])):
        lines.append(f"| {sum(names.values()):,} | {why} | {_listed(names)} |")
    return "\n".join(lines) + "\n"


def _command(given: Sequence[str]) -> list[str]:
    """Return the lines of the command with these arguments."""
    words = " ".join(["python -m tools.torch_samples", *given])
    lines = wrap(words, 90, subsequent_indent="    ", break_on_hyphens=False)
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _general(why: str) -> str:
    """Return a reason without the shapes and dtypes of one call."""
    if why.startswith("its converter gives") and "instead of" in why and "[" in why:
        return "its converter gives another type than PyTorch"
    return why.replace("|", "or")


def _listed(names: Counter[str], most: int = 12) -> str:
    shown = [f"`{name}`" for name, _ in names.most_common(most)]
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join(shown + more)
