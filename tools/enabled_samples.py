"""The command: ``python -m tools.enabled_samples``.

Runs torch's own operator samples, forward and backward, as they are and once more inside of
`meta.interop.torch.enable`, and compares: values, dtypes, shapes, strides, gradients. Dispatch
prefers the dialect that ``--dialect`` names. The default, "mirror", has the kernels of the dialect
"torch" under another name: a call of "torch" itself would go to PyTorch's own kernel at once, and
test nothing.

What is not served goes to PyTorch's kernels, as for users; the reasons are counted, and
``--page FILE`` writes them as a page of the documentation.

Exit status: 0 no entry fails, 1 some do, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from textwrap import wrap
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils import _pytree as pytree

import meta
import meta.interop.torch as interop
from meta.dialect import Dialect
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.preference import forget
from meta.dialect.torch import torch as aten_dialect
from meta.ir.operators import OP_RESOLVERS
from tools.processes import in_order
from tools.torch_samples.command import chosen_dtypes, entries_of, parser_of
from tools.torch_samples.compare import GRADIENT_TOLERANCE, compare, widened
from tools.torch_samples.entries import ENTRIES, differentiable, dtypes_of, of_torch, samples

UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"} | {
    "new_empty_strided",
}
"""Entries whose values are what was in memory before."""


@dataclass
class Outcome:
    """What came of the samples of an entry.

    ``ran``: samples; ``served``: calls by overload and dialect; ``refused``: calls by overload and
    reason; ``failures``: what differs.
    """

    ran: int = 0
    served: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Add what came of further samples."""
        self.ran += other.ran
        self.served += other.served
        self.refused += other.refused
        self.failures += other.failures


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
        for one in made.ops.values():
            one.base.aspects.dialect_ops.remove(one)
        DIALECTS.remove("mirror")
        del OP_RESOLVERS["mirror"]
        forget()


def _grown(sample: Any) -> Any:
    """Return a sample with tensors of its own, which require what the given ones do."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        return value.detach().requires_grad_()

    return pytree.tree_map(leaf, (sample.input, tuple(sample.args), dict(sample.kwargs)))


def _results(
    entry: Any, sample: Any, gradients: bool, dy: Sequence[torch.Tensor] | None = None
) -> tuple[Any, Any, Sequence[torch.Tensor]]:
    """Return the result of a sample, the gradients of its tensors, and those of the result that
    they are computed of: random ones where none are given.
    """
    given, args, kwargs = _grown(sample)
    torch.manual_seed(0)
    result = entry(given, *args, **kwargs)
    if not gradients:
        return result, (), ()
    outputs = [t for t in pytree.tree_leaves(result) if getattr(t, "requires_grad", False)]
    leaves = pytree.tree_leaves((given, args, kwargs))
    inputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs or not inputs:
        return result, (), ()
    torch.manual_seed(1)
    given_dy = [torch.randn_like(t) for t in outputs] if dy is None else dy
    return result, torch.autograd.grad(outputs, inputs, given_dy, allow_unused=True), given_dy


def _check(entry: Any, sample: Any, gradients: bool, dialect: str) -> None:
    """Raise AssertionError for a sample whose results are others inside of `enable`."""
    *expected, dy = _results(entry, sample, gradients)
    with meta.dialect.prefer(dialect), interop.enable(device="cpu"):
        *found, _ = _results(entry, sample, gradients)

    def exact(which: int) -> Any:
        given = sample.input, tuple(sample.args), dict(sample.kwargs)
        given, args, kwargs = pytree.tree_map(widened, given)
        wide = SimpleNamespace(input=given, args=args, kwargs=kwargs)
        return _results(entry, wide, gradients, list(map(widened, dy)))[which]

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
    """Run the samples of an entry."""
    interop.reset_report()
    with mirror() if dialect == "mirror" else nullcontext():
        outcome = _run_samples(key, dtypes, limit, dialect)
    report = interop.report()
    outcome.served.update(report.served)
    outcome.refused.update(report.refused)
    return outcome


def _run_samples(
    key: str, dtypes: tuple[torch.dtype, ...], limit: int | None, dialect: str
) -> Outcome:
    entry, outcome = ENTRIES[key], Outcome()
    for dtype in dtypes_of(key):
        if (dtypes and dtype not in dtypes) or key in UNDEFINED:
            continue
        gradients = differentiable(key, dtype)
        for sample in islice(samples(key, dtype), limit):
            with of_torch():
                try:
                    _results(entry, sample, gradients)
                except (RuntimeError, NotImplementedError, AssertionError):
                    continue  # a sample that torch refuses itself
                try:
                    outcome.ran += 1
                    _check(entry, sample, gradients, dialect)
                except Exception as error:
                    # Whatever it is, it is what is wrong here, and the others go on.
                    outcome.failures.append(f"{key} of {dtype}: {type(error).__name__}: {error}")
    return outcome


def _run(arguments: tuple[Any, ...]) -> Outcome:
    return run(*arguments)


def page(total: Outcome, command: Sequence[str], entries: int) -> str:
    """Return the page of the documentation about what is not served, which a command wrote."""
    reasons: dict[str, Counter[str]] = {}
    for (name, why), count in total.refused.items():
        reasons.setdefault(_general(why), Counter())[name] += count
    served, refused = sum(total.served.values()), sum(total.refused.values())
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
    words = " ".join(["python -m tools.enabled_samples", *given])
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = parser_of(
        "tools.enabled_samples",
        "Compare PyTorch with itself inside of meta.interop.torch.enable, on its own samples.",
        "entry",
    )
    arguments.add_argument("--filter", default="", metavar="TEXT", help="entries with it")
    arguments.add_argument("--dialect", default="mirror", help="the dialect that is preferred")
    arguments.add_argument("--page", metavar="FILE", help="write what is refused as a page")
    options = arguments.parse_args(argv)
    keys, dtypes = entries_of(arguments, options, options.filter), chosen_dtypes(options)
    work = [(key, dtypes, options.samples, options.dialect) for key in keys]
    total = Outcome()
    for found in in_order(_run, work, options.jobs, "entries"):
        total.add(found)
    if options.page:
        given = sys.argv[1:] if argv is None else argv
        Path(options.page).write_text(page(total, given, len(keys)), "utf-8")
    if options.json:
        lists = {"served": _records(total.served), "refused": _records(total.refused)}
        print(json.dumps({"ran": total.ran, "failures": total.failures, **lists}, indent=1))
    else:
        for failure in total.failures:
            print(f"FAILED {failure}")
        for (name, why), count in total.refused.most_common():
            print(f"refused {name} x {count}: {why}")
        print(f"{total.ran} samples, {len(total.failures)} failures")
    return int(bool(total.failures))


def _records(counts: Counter[tuple[str, str]]) -> list[list[Any]]:
    return [[*key, count] for key, count in counts.most_common()]


if __name__ == "__main__":
    sys.exit(main())
