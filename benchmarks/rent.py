"""What each pass and each rule of a schedule gives: all rows of the other benchmarks without it.

    python benchmarks/rent.py [--rows train,softmax] [--parts channels_last] [--jobs 2]
    python benchmarks/rent.py --device cuda --markdown     # also replaces the table of that device
                                                           # in docs/measurements.md

The rows are those of `models_cpu.py` and `kernels_cpu.py`, or of `models_cuda.py` and
`kernels_cuda.py`; see `rent_rows.py`. Each is compiled as it is, and without one part at a time.
Where the program is the same nothing is timed. Otherwise both take turns, and *gives* is the time
without the part over the time with it, in the row in which that is the largest; *memory* is the
same of the memory that the plan takes.

A part *pays* if it makes a model 2 % faster or a kernel 1.2x, or saves 2 % of the memory of a row.
A part that does not has to serve something else: see `SERVES`.

``--jobs`` processes share the rows; on the CPU each has a core of its own, on CUDA one at a time is
timed.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from command import add_outputs, parser_of
from report import conditions, conditions_cuda, plain, replace_section, table_in_markdown

from meta.testing.workers import Lost, answer_all, in_processes

MODEL, KERNEL, MEMORY = 1.02, 1.2, 1.02
"""From which a part pays, in models, in kernels, and in the memory of both."""
SERVES = {
    "promote_refs": "programs with references: gradients and fusion see through what is promoted",
    "rematerialize": "programs with a memory budget, which the rows do not have",
    "explicit_keys": "random operators in CUDA graphs: they cannot draw their keys on the host",
    "split_dropout": "dropout, which the rows do not have",
    "inline": "programs with functions, which the rows do not have",
    "deduplicate": "programs with repeated functions and constants: they compile once",
    "fold_constant": "models of others, which compute with constants",
    "fuse_composites": "models of others, which write norms and activations out",
    "fuse_attention": "models of others, which write attention out",
    "bypass_casts": "gradients clipped by their norm in mixed precision",
    "narrow_before_views": "attention written out, in mixed precision",
    **dict.fromkeys(
        ("channels_last", "align_products", "carry_padding", "join_products", "join_casts"), "CUDA"
    ),
    "eliminate_common_subexpressions": "CUDA",
    **dict.fromkeys(("simplify", "memory_schedule", "inplace_update"), "the CPU"),
    "dead_code": "all passes that leave behind what nobody uses",
    "simplify.arithmetic": "models of others, and what users write",
    "simplify.shapes": "models of others, and what users write",
    "simplify.casts": "mixed precision of models that cast by hand",
}
"""What parts are for whose worth is not in the rows."""
BEGIN = "<!-- written by benchmarks/rent.py --markdown --device {} -->"


def serve(
    connection: Connection, device: str, chosen: Sequence[str], lock: Any, started: Any
) -> None:
    """Answer the names of rows by their records; on the CPU each process has a core of its own."""
    if device == "cpu":
        own = sorted(os.sched_getaffinity(0))
        with started:
            os.sched_setaffinity(0, {own[started.value % len(own)]})
            started.value += 1
    import torch

    torch.set_num_threads(1)
    os.environ["TVM_NUM_THREADS"] = "1"
    import rent_rows

    rows, parts = rent_rows.rows(device), rent_rows.features(device)

    def answer(name: str) -> tuple[list[Any], bool]:
        found: list[Any] = []
        try:
            for record in rent_rows.measure(rows[name], [parts[p] for p in chosen], lock):
                found.append({"row": name, **record})
        except Exception as error:  # reported, and the run fails
            found.append({"row": name, "failed": f"{type(error).__name__}: {error}"})
        return found, True

    answer_all(connection, answer)


def measured(device: str, rows: Sequence[str], parts: Sequence[str], jobs: int) -> list[Any]:
    """Return one record for each row and part."""
    context = multiprocessing.get_context("spawn")
    shared = context.Lock(), context.Value("i", 0)
    found: list[Any] = []
    answers = in_processes(rows, serve, (device, parts, *shared), jobs, math.inf)
    for done, (row, records) in enumerate(answers, 1):
        lost = isinstance(records, Lost)
        found += [{"row": row, "failed": records.why}] if lost else records
        if sys.stderr.isatty():
            print(f"\r{done}/{len(rows)} rows", end="", file=sys.stderr)
    return found


def summary(part: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a part gives: the largest share in models, in kernels, and of memory."""
    own = [r for r in records if r.get("part") == part and "time" in r]
    best: dict[str, Any] = {"part": part, "rows": len(own)}
    for key, of in (
        ("model", [r for r in own if r["model"]]),
        ("kernel", [r for r in own if not r["model"]]),
    ):
        most = max(of, key=lambda r: r["time"], default=None)
        best[key] = None if most is None else (most["time"], most["row"])
    most = max(own, key=lambda r: r["memory"], default=None)
    best["memory"] = None if most is None else (most["memory"], most["row"])
    needed = [r for r in records if r.get("part") == part and "needed" in r]
    best["needed"] = needed[0]["needed"] if needed else None
    best["pays"] = bool(needed) or any(
        best[key] is not None and best[key][0] >= limit
        for key, limit in (("model", MODEL), ("kernel", KERNEL), ("memory", MEMORY))
    )
    return best


def table(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    head = ["part", "pays by", "rows that change", "model", "kernel", "memory"]
    lines = []
    for one in found:
        pays = "itself" if one["pays"] else SERVES.get(one["part"], "NOTHING")
        if one["needed"]:
            pays = f"programs need it: {one['needed']}"
        figures = [
            "" if one[key] is None else f"{one[key][0]:.2f}x ({one[key][1]})"
            for key in ("model", "kernel", "memory")
        ]
        lines.append([one["part"], pays, str(one["rows"]), *figures])
    return [head, *lines]


def main() -> int:
    """Measure and print; return 1 if a row fails or ``--check`` finds a part that does not pay."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", help="only rows that contain one of these, separated by commas")
    parser.add_argument("--parts", help="only these parts, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    add_outputs(parser)
    options = parser.parse_args()
    import rent_rows

    rows, parts = list(rent_rows.rows(options.device)), list(rent_rows.features(options.device))
    if options.markdown and (options.rows or options.parts):
        parser.error("--markdown is for all rows and parts")
    if options.rows:
        rows = [row for row in rows if any(text in row for text in options.rows.split(","))]
    if options.parts:
        chosen = options.parts.split(",")
        for name in chosen:
            if name not in parts:
                parser.error(f"{name!r} is none of {', '.join(parts)}")
        parts = chosen
    if not rows:
        parser.error("no row is left")
    records = measured(options.device, rows, parts, options.jobs)
    failed = [f"{r['row']}: {r['failed']}" for r in records if "failed" in r]
    found = [summary(part, records) for part in parts]
    if options.device == "cuda":
        where = conditions_cuda("times without a part to times with it")
    else:
        where = conditions(True, "one thread a process; times without a part to times with it")
    if options.json:
        print(json.dumps({"conditions": where, "parts": found, "rows": records, "failed": failed}))
    else:
        print(f"{where}\n\n{plain(table(found))}")
        print(*failed, sep="\n", file=sys.stderr)
    if options.markdown and not failed:
        text = f"{where}.\n\n{table_in_markdown(table(found))}\n"
        replace_section(BEGIN.format(options.device), text)
    short = any(not one["pays"] and one["part"] not in SERVES for one in found)
    return int(bool(failed) or (options.check and short))


if __name__ == "__main__":
    sys.exit(main())
