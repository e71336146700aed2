"""Whole models of `meta` on an NVIDIA GPU beside torch eager, torch.compile, and torch.compile with
CUDA graphs (mode="reduce-overhead"), in one run.

    python benchmarks/models_cuda.py [--rows NAMES] [--contenders meta,eager] [--check]
    python benchmarks/models_cuda.py --rows bert1-train-fp16 --contenders meta --profile
    python benchmarks/models_cuda.py --markdown         # also replaces the table in
                                                        # docs/performance.md
    python benchmarks/models_cuda.py --tiny --together  # small networks: does all of it run?

The rows are in `models/cuda_rows.py`. `meta` runs the networks of its zoo, torch those of
transformers (attention by scaled_dot_product_attention) and torchvision, with equal random
parameters, without dropout. A training step is forward, backward and update, in `meta` one compiled
program; torch has ``torch.autocast``, fused optimizers, and images and kernels of convolutions in
channels_last. There is no loss scale. Inference is in half precision throughout: parameters, too.

Each contender of a row runs in a process of its own, so that its memory is its own; see
`models/cuda_worker.py` for what is measured. The losses of the first steps, or some of an
inference's results, are compared with those of torch eager; a contender whose results differ, or
that ends with an error, has "failed", and so has the run. *First call* is cold in a process with
empty caches on disk, and warm in a second one.

The goals, which ``--check`` holds, are shares of the best torch contender's time (0.9 in each row),
memory, and cold first call (in rows that state them).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import Any

import torch
from models.cuda_contenders import NAMES
from models.cuda_processes import Process
from models.cuda_rows import ROWS
from report import conditions_cuda, plain, replace_section, table_in_markdown

BEGIN = "<!-- written by benchmarks/models_cuda.py --markdown -->"
TOLERANCES = {"float16": 2e-2, "bfloat16": 3e-2, "tf32": 5e-3}
"""How far results may be apart, as a share of the largest of them."""
WARM = ("meta", "compile")
"""The contenders whose warm first call is measured: caches are the same in torch's two modes."""
COMPILED = ("compile", "reduce-overhead")


def measure(names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one record per row: what was measured, and how `meta` stands to the best of torch."""
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in names}
    for name, contender, record in _measured(names, options):
        found[name][contender] = record
        print(summary(name, contender, record), file=sys.stderr, flush=True)
    return [result(name, found[name], options.tiny) for name in names]


def _measured(
    names: list[str], options: argparse.Namespace
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Iterate over row, contender and record."""
    if options.together:
        yield from _together(names, options)
        return
    for row, name in product(names, options.contenders):
        with tempfile.TemporaryDirectory() as folder:
            record = Process(row, name, folder, _flags(options)).measure()
            if _is_warm(name, options) and "failed" not in record:
                warm = Process(row, name, folder, _flags(options, first_call_only=True))
                record |= _warm(warm)
            yield row, name, record


def _flags(options: argparse.Namespace, first_call_only: bool = False) -> list[str]:
    """Return the options of a worker."""
    more = ["--first-call-only"] if first_call_only else ["--profile"] * options.profile
    return ["--tiny"] * options.tiny + more


def _is_warm(name: str, options: argparse.Namespace) -> bool:
    """Tell whether a contender's warm first call is measured."""
    return name in WARM and not options.no_warm


def _warm(process: Process) -> dict[str, Any]:
    """Return what a second process adds to a contender's record."""
    found = process.measure()
    return found if "failed" in found else {"warm_call": found["first_call"]}


def _together(
    names: list[str], options: argparse.Namespace
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Make all models at the same time. Then run the rows that have a goal for the first call, one
    contender after the other, while the rest wait; then compile those, all at the same time; and
    time them one after the other.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:

        def start(row: str, name: str, again: bool = False) -> Process:
            crowded = ROWS[row].first_call is None
            flags = _flags(options, first_call_only=again)
            process = Process(row, name, f"{folder}/{row}-{name}", flags, True, crowded)
            running.callback(process.end)
            return process

        alone = [row for row in names if ROWS[row].first_call is not None]
        cold = [start(*pair) for pair in product(alone, options.contenders)]
        warm = {p: start(p.row, p.contender, True) for p in cold if _is_warm(p.contender, options)}
        crowd = [
            start(*pair) for pair in product(names, options.contenders) if pair[0] not in alone
        ]
        for process in (*cold, *warm.values(), *crowd):
            process.ready()
        for process in cold:
            record = process.measure()
            if process in warm and "failed" not in record:
                record |= _warm(warm[process])
            yield process.row, process.contender, record
        for process in crowd:
            process.go()
        for process in crowd:
            process.ready()
        for process in crowd:
            record = process.measure()
            record.pop("first_call", None)  # others were compiled beside it
            yield process.row, process.contender, record


def result(row: str, found: dict[str, dict[str, Any]], tiny: bool) -> dict[str, Any]:
    """Return the record of a row."""
    compare(row, found)
    work = f"{ROWS[row].task(tiny).what} {'train' if ROWS[row].training else 'infer'}"
    record = {"row": row, "what": work, "contenders": found, **shares(found)}
    record["missed"] = missed(row, record)
    return record


def compare(row: str, found: dict[str, dict[str, Any]]) -> None:
    """Mark contenders as failed whose results are not those of torch eager."""
    if "values" not in found.get("eager", {}):
        return
    expected = torch.tensor(found["eager"]["values"])
    bound = TOLERANCES[ROWS[row].precision] * expected.abs().max()
    for name, record in found.items():
        if "values" in record:
            difference = (torch.tensor(record["values"]) - expected).abs().max()
            if not difference <= bound:
                record["failed"] = f"results differ by {difference:.2e}: {record['values']}"
                print(summary(row, name, record), file=sys.stderr)


def shares(found: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """Return the figures of `meta` as shares of the best torch contender's: that with the least
    time, of time and memory; and the least cold first call of torch.compile's.
    """
    right = {n: r for n, r in found.items() if "failed" not in r}
    others = [r for n, r in right.items() if n != "meta"]
    if "meta" not in right or not others:
        return {"time": None, "memory": None, "first_call": None}
    own, best = right["meta"], min(others, key=lambda r: r["ms"])
    compiled = [r["first_call"] for n, r in right.items() if n in COMPILED and "first_call" in r]
    return {
        "time": own["ms"] / best["ms"],
        "memory": own["peak_mb"] / best["peak_mb"],
        "first_call": own["first_call"] / min(compiled) if compiled else None,
    }


def missed(row: str, record: dict[str, Any]) -> list[str]:
    """Return the goals that a record misses."""
    goals = {name: getattr(ROWS[row], name) for name in ("time", "memory", "first_call")}
    return [
        name.replace("_", " ")
        for name, goal in goals.items()
        if goal is not None and record[name] is not None and record[name] > goal
    ]


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    head = ["work", "precision", *(f"{n}, ms" for n in NAMES), *(f"{n}, MB" for n in NAMES)]
    head += ["first call of meta, s", "of compile, s", "of reduce-overhead, s"]
    head += ["time to best", "memory", "first call", "goals", "missed"]
    lines = []
    for record in records:
        row, found = ROWS[record["row"]], record["contenders"]
        lines.append(
            [
                record["what"],
                row.precision + (f", {row.optimizer}" if row.training else ""),
                *(_figure(found.get(n), "ms", 3) for n in NAMES),
                *(_figure(found.get(n), "peak_mb", 0) for n in NAMES),
                *(_first(found.get(n, {})) for n in ("meta", "compile", "reduce-overhead")),
                *(_share(record[key]) for key in ("time", "memory", "first_call")),
                ", ".join(f"{g:g}" for g in (row.time, row.memory, row.first_call) if g),
                ", ".join(record["missed"]),
            ]
        )
    return [head, *lines]


def _figure(record: dict[str, Any] | None, key: str, digits: int) -> str:
    if record is None:
        return ""
    return "failed" if "failed" in record else f"{record[key]:.{digits}f}"


def summary(row: str, name: str, record: dict[str, Any]) -> str:
    """Return one line of what is known of a contender before the table is."""
    head = f"{row:22s} {name:16s}"
    if "failed" in record:
        return f"{head} failed: {record['failed']}"
    return (
        f"{head} {record['ms']:9.3f} ms ({record['host_ms']:.3f} on the host), "
        f"{record['peak_mb']:6.0f} MB, first call {_first(record) or 'not measured'}"
    )


def _first(record: dict[str, Any]) -> str:
    """Return the cold and the warm first call."""
    texts = [f"{record[key]:.1f}" for key in ("first_call", "warm_call") if key in record]
    return " / ".join(texts)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated names")
    parser.add_argument("--contenders", default=",".join(NAMES), help="comma-separated names")
    parser.add_argument("--no-warm", action="store_true", help="leave warm first calls out")
    parser.add_argument(
        "--together",
        action="store_true",
        help="let all contenders of all rows compile at the same time, which takes a tenth of the "
        "time; first calls then only of the rows that have a goal for them, which run alone",
    )
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    parser.add_argument("--tiny", action="store_true", help="small networks, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--markdown", action="store_true", help="also rewrite docs/performance.md")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    options = parser.parse_args()
    options.rows, options.contenders = options.rows.split(","), options.contenders.split(",")
    for name, known in [
        *((n, tuple(ROWS)) for n in options.rows),
        *((n, NAMES) for n in options.contenders),
    ]:
        if name not in known:
            parser.error(f"{name!r} is none of {', '.join(known)}")
    if options.markdown and (set(options.rows) != set(ROWS) or options.tiny):
        parser.error("--markdown is for all rows, in their full size")
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    records = measure(options.rows, options)
    where = conditions_cuda("medians of 50 calls between CUDA events")
    if options.json:
        print(json.dumps({"conditions": where, "rows": records}))
    else:
        print(f"{where}\n\n{plain(rows(records))}")
    if options.markdown:
        replace_section(BEGIN, f"{where}.\n\n{table_in_markdown(rows(records))}\n")
    failed = any("failed" in found for r in records for found in r["contenders"].values())
    return int(failed or (options.check and any(r["missed"] for r in records)))


if __name__ == "__main__":
    sys.exit(main())
