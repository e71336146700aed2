"""Whole models of `meta` on an NVIDIA GPU beside torch eager, torch.compile, and torch.compile with
CUDA graphs (mode="reduce-overhead"), in one run.

    python benchmarks/models_cuda.py [--rows NAMES] [--contenders meta,eager] [--check]
    python benchmarks/models_cuda.py --rows bert1-train-fp16 --contenders meta --profile
    python benchmarks/models_cuda.py --symbolic         # any batch beside one, of inference
    python benchmarks/models_cuda.py --markdown         # also replaces the table in
                                                        # docs/performance.md
    python benchmarks/models_cuda.py --tiny --together  # small networks: does all of it run?

The rows are in `models/cuda_rows.py`. `meta` runs the networks of its zoo, torch those of
transformers (attention by scaled_dot_product_attention) and torchvision, with equal random
parameters, without dropout but in one row. A training step is forward, backward and update, in
`meta` one compiled program; torch has ``torch.autocast``, fused optimizers, and images and kernels
of convolutions in channels_last. There is no loss scale. Inference is in half precision throughout:
parameters, too.

Each contender of a row runs in a process of its own, so that its memory is its own; see
`models/cuda_worker.py` for what is measured. The losses of the first steps, or some of an
inference's results, are compared with those of torch eager; a contender whose results differ, or
that ends with an error, has "failed", and so has the run. *First call* is cold in a process with
empty caches on disk, and warm in a second one.

The goals, which ``--check`` holds, are shares of the best torch contender's time (0.9 in each row),
memory, and cold first call (in rows that state them); with ``--symbolic``, that a program that was
compiled for any batch takes at most 1.05 of the time of one for the row's. ``--records FILE`` keeps
what is measured, so that a run that was ended goes on.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from typing import Any

from models.contenders import NAMES, SYMBOLIC
from models.cuda_command import measure, parser_for
from models.cuda_records import failed, figure, first, share, shares, what
from models.cuda_rows import ROWS
from report import write

BEGIN = "<!-- written by benchmarks/models_cuda.py --markdown -->"
WARM = ("meta", "compile")
"""The contenders whose warm first call is measured: caches are the same in torch's two modes."""
MOST_SYMBOLIC = 1.05
"""Of the time of a program for one batch, at most, that one for any may take."""
FIRST_CALL = list(product((n for n, r in ROWS.items() if r.first_call is not None), NAMES))


def result(row: str, found: dict[str, dict[str, Any]], tiny: bool) -> dict[str, Any]:
    """Return the record of a row."""
    record = {"row": row, "what": what(row, tiny), "contenders": found, **shares("meta", found)}
    record["missed"] = missed(row, record)
    return record


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
                *(figure(found.get(n), "ms", 3) for n in NAMES),
                *(figure(found.get(n), "peak_mb", 0) for n in NAMES),
                *(first(found.get(n)) for n in ("meta", "compile", "reduce-overhead")),
                *(share(record[key]) for key in ("time", "memory", "first_call")),
                ", ".join(f"{g:g}" for g in (row.time, row.memory, row.first_call) if g),
                ", ".join(record["missed"]),
            ]
        )
    return [head, *lines]


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = parser_for(__doc__, ROWS, NAMES)
    parser.add_argument("--no-warm", action="store_true", help="leave warm first calls out")
    parser.add_argument(
        "--symbolic",
        action="store_true",
        help="measure programs for any batch beside those for one",
    )
    options = parser.parse_args()
    if options.symbolic:
        return any_batch(parser, options)
    warm = () if options.no_warm else WARM
    where, found = measure(parser, options, ROWS, FIRST_CALL, warm)
    records = [result(name, found[name], options.tiny) for name in options.rows]
    write(options, where, {"rows": records}, rows(records), begin=BEGIN)
    return int(failed(records) or (options.check and any(r["missed"] for r in records)))


def any_batch(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Measure and print inference with a symbolic batch; return 1 if ``--check`` finds it slow."""
    options.rows = [name for name in options.rows if not ROWS[name].training]
    options.contenders = ["meta", SYMBOLIC]
    where, found = measure(parser, options, ROWS, ())
    head = ["work", "precision", "one batch, ms", "any batch, ms", "MB", "MB", "any to one"]
    lines, ratios = [head], []
    for name in options.rows:
        one, any_ = records = [found[name][n] for n in options.contenders]
        ratio = shares(SYMBOLIC, found[name])["time"]
        times = [figure(r, key, 3 * (key == "ms")) for key in ("ms", "peak_mb") for r in records]
        lines.append([what(name, options.tiny), ROWS[name].precision, *times, share(ratio)])
        ratios.append({"row": name, "one": one, "any": any_, "time": ratio})
    write(options, where, {"rows": ratios}, lines)
    slow = any(r["time"] is None or r["time"] > MOST_SYMBOLIC for r in ratios)
    return int(options.check and slow)


if __name__ == "__main__":
    sys.exit(main())
