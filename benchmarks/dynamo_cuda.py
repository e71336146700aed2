"""`torch.compile(model, backend="meta")` on an NVIDIA GPU beside torch eager and Inductor, alone,
with CUDA graphs (mode="reduce-overhead"), and with kernels that it has measured
(mode="max-autotune-no-cudagraphs"): PyTorch's models all.

    python benchmarks/dynamo_cuda.py --together [--rows bert1-train-fp16] [--check]
    python benchmarks/dynamo_cuda.py --rows strangers --together --records rows.jsonl
    python benchmarks/dynamo_cuda.py --together --lanes 4   # first calls with 4 of 16 cores each
    python benchmarks/dynamo_cuda.py --rows vit-train-bf16 --contenders dynamo --profile
    python benchmarks/dynamo_cuda.py --explain-gap vit-train-bf16 --trace-to traces
    python benchmarks/dynamo_cuda.py --markdown         # also replaces the tables in
                                                        # docs/performance.md
    python benchmarks/dynamo_cuda.py --tiny --together  # small networks: does all of it run?

The rows are *known*, those of models_cuda.py, and *strangers*, models of timm and transformers in
`models/cuda_strangers.py`; ``--rows`` takes these two words, too. *dynamo* is the backend of
`meta`. Each contender of a row runs in a process of its own, with empty caches on disk; see
`models/cuda_worker.py` for what is measured, and models_cuda.py for how results are compared with
those of torch eager. First calls are those of *dynamo* and *reduce-overhead*; ``--together``
measures them while nothing else compiles, but in the other lanes.

``--explain-gap`` compares the kernels of two contenders, any of models/contenders.py, *dynamo* and
*reduce-overhead* by default, as `models/cuda_profile.py` has it: by their traces in a folder, which
needs no GPU. Traces that are not there are recorded first. ``--trace-to`` alone records those of
all contenders measured.

The goals, which ``--check`` holds. Each row: at most the time of the best of the others, at most
1.05 of the memory of that one, and at most 0.25 of the first call of Inductor with CUDA graphs.
The geometric mean of the shares of time of all rows: at most 0.82.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Collection
from itertools import product
from pathlib import Path
from typing import Any

from models.contenders import DYNAMO, TUNED_KERNELS
from models.cuda_command import measure, parser_for
from models.cuda_profile import gap, gap_text
from models.cuda_records import COMPILED, failed, figure, first, share, shares, what
from models.cuda_rows import ROWS
from models.cuda_running import Run
from models.cuda_strangers import EVERY_ROW, STRANGERS
from report import write

BEGIN = "<!-- written by benchmarks/dynamo_cuda.py --markdown -->"
CONTENDERS = (DYNAMO, "eager", *COMPILED, TUNED_KERNELS)
FIRST = (DYNAMO, "reduce-overhead")
"""The contenders whose first call counts."""
TABLES: dict[str, Collection[str]] = {"known": ROWS, "strangers": STRANGERS}
GOALS = {"time": 1.0, "memory": 1.05, "first_call": 0.25}
"""The most that a row's shares may be."""
MOST_MEAN = 0.82
"""The most that the mean of all rows' shares of the best time may be."""
SHARES = {"time": "time to best", "memory": "memory", "first_call": "first call"}
EVERY = "all rows"


def result(row: str, found: dict[str, dict[str, Any]], tiny: bool) -> dict[str, Any]:
    """Return the record of a row: what was measured, the shares of `DYNAMO`, and goals missed."""
    counted = {n: dict(r) for n, r in found.items()}
    for name in set(counted).difference(FIRST):
        counted[name].pop("first_call", None)
    record = {"row": row, "what": what(row, tiny), "contenders": found, **shares(DYNAMO, counted)}
    record["missed"] = ["failed"] * ("failed" in found.get(DYNAMO, {})) + [
        SHARES[name]
        for name, most in GOALS.items()
        if record[name] is not None and record[name] > most
    ]
    return record


def means(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the geometric means of the shares by table and share, of the rows that have them."""
    found: dict[str, dict[str, float]] = {}
    for table, names in {**TABLES, EVERY: EVERY_ROW}.items():
        for name in SHARES:
            values = [r[name] for r in records if r["row"] in names and r[name] is not None]
            if values:
                found.setdefault(table, {})[name] = statistics.geometric_mean(values)
    return found


def missed(records: list[dict[str, Any]]) -> list[str]:
    """Return the goals that are missed, in words."""
    found = [f"{r['row']}: {goal}" for r in records for goal in r["missed"]]
    if means(records).get(EVERY, {}).get("time", 0.0) > MOST_MEAN:
        found.append("the mean")
    return found


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    head = ["work", "precision", *(f"{n}, ms" for n in CONTENDERS)]
    head += [*(f"{n}, MB" for n in CONTENDERS), *(f"first call of {n}, s" for n in FIRST)]
    head += [*SHARES.values(), "missed"]
    lines = []
    for record in records:
        row, found = EVERY_ROW[record["row"]], record["contenders"]
        lines.append(
            [
                record["what"],
                row.precision + (f", {row.optimizer}" if row.training else ""),
                *(figure(found.get(n), "ms", 3) for n in CONTENDERS),
                *(figure(found.get(n), "peak_mb", 0) for n in CONTENDERS),
                *(first(found.get(n)) for n in FIRST),
                *(share(record[name]) for name in SHARES),
                ", ".join(record["missed"]),
            ]
        )
    return [head, *lines]


def sentence(records: list[dict[str, Any]]) -> str:
    """Return the means in words."""
    texts = [
        f"{table} {', '.join(f'{SHARES[n]} {value:.2f}x' for n, value in found.items())}"
        for table, found in means(records).items()
    ]
    return f"Geometric means: {'; '.join(texts)}."


def explained(row: str, contenders: list[str], folder: Path, tiny: bool, as_json: bool) -> str:
    """Return where the first of two contenders takes longer; their traces are in a folder, or are
    recorded there.
    """
    files = {name: folder / f"{row}.{name}.json" for name in contenders}
    left = [name for name, file in files.items() if not file.exists()]
    if left:
        flags = ("--trace-to", str(folder), *["--tiny"] * tiny)
        run = Run({row: EVERY_ROW[row]}, left, frozenset(), together=True, flags=flags)
        for _, name, record in run.measured():
            if "failed" in record:
                raise SystemExit(f"{row} {name}: {record['failed']}")
    ours, theirs = (json.loads(files[name].read_text()) for name in contenders)
    found = gap(ours, theirs)
    return json.dumps(found) if as_json else gap_text(found)


def main() -> int:
    """Measure and print; return 1 if a contender failed, or ``--check`` finds a goal missed."""
    parser = parser_for(__doc__, EVERY_ROW, CONTENDERS, TABLES)
    parser.add_argument("--no-first-call", action="store_true", help="no first calls if together")
    parser.add_argument(
        "--explain-gap", nargs="+", metavar=("ROW", "CONTENDER"), help="of one row, two contenders"
    )
    options = parser.parse_args()
    if options.explain_gap:
        row, *pair = options.explain_gap
        if row not in EVERY_ROW or len(pair) not in (0, 2):
            parser.error("--explain-gap takes a row, and two contenders or none")
        folder = options.trace_to or Path("traces")
        print(explained(row, pair or list(FIRST), folder, options.tiny, options.json))
        return 0
    first_calls = () if options.no_first_call else tuple(product(EVERY_ROW, FIRST))
    where, found = measure(parser, options, EVERY_ROW, first_calls)
    records = [result(name, found[name], options.tiny) for name in options.rows]
    notes = [sentence(records), f"Goals missed: {', '.join(missed(records)) or 'none'}."]
    figures = {"rows": records, "means": means(records)}
    write(options, where, figures, rows(records), notes, BEGIN)
    return int(failed(records) or (options.check and bool(missed(records))))


if __name__ == "__main__":
    sys.exit(main())
