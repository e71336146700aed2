"""`torch.compile(model, backend="meta")` on an NVIDIA GPU beside torch eager, Inductor, and
Inductor with CUDA graphs: the rows of models_cuda.py, PyTorch's models all.

    python benchmarks/dynamo_cuda.py [--rows bert1-train-fp16] [--tiny]
    python benchmarks/dynamo_cuda.py --json         # one JSON object
    python benchmarks/dynamo_cuda.py --check        # exit 1 if a goal is missed

Each contender of a row runs in a process of its own, with empty caches on disk; see
`models/cuda_worker.py` for what is measured, and models_cuda.py for how results are compared with
those of torch eager.

The goals, which ``--check`` holds: at most 0.9 of the time of the best of the others in each row,
and at most 0.3 of the first call of the quicker one of Inductor's two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from typing import Any

import torch
from models.cuda_contenders import DYNAMO
from models.cuda_processes import Process
from models.cuda_rows import ROWS
from models_cuda import COMPILED, compare
from report import conditions_cuda, plain

CONTENDERS = (DYNAMO, "eager", *COMPILED)
MOST_TIME, MOST_FIRST_CALL = 0.9, 0.3


def measure(row: str, tiny: bool) -> dict[str, Any]:
    """Return what was measured of a row, by contender, and the shares of `meta`."""
    found = {}
    for contender in CONTENDERS:
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--tiny"] * tiny
            found[contender] = Process(row, contender, folder, flags).measure()
    compare(row, found)
    record: dict[str, Any] = {"row": row, "contenders": found, "time": None, "first_call": None}
    own = found[DYNAMO]
    right = {n: r for n, r in found.items() if n != DYNAMO and "failed" not in r}
    compiled = [right[n]["first_call"] for n in COMPILED if n in right]
    if "failed" not in own and right:
        record["time"] = own["ms"] / min(r["ms"] for r in right.values())
    if "failed" not in own and compiled:
        record["first_call"] = own["first_call"] / min(compiled)
    return record


def missed(record: dict[str, Any]) -> bool:
    """Whether a row misses a goal, or has failed."""
    time, first = record["time"], record["first_call"]
    if time is None or time > MOST_TIME:
        return True
    return first is not None and first > MOST_FIRST_CALL


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    table = [["row", "precision", *(f"{n}, ms" for n in CONTENDERS), "time", "first call"]]
    for r in records:
        times = [
            "failed" if "failed" in c else f"{c['ms']:.3f}"
            for c in (r["contenders"][n] for n in CONTENDERS)
        ]
        shares = ["" if r[k] is None else f"{r[k]:.2f}" for k in ("time", "first_call")]
        table.append([r["row"], ROWS[r["row"]].precision, *times, *shares])
    return table


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated names")
    parser.add_argument("--tiny", action="store_true", help="small networks: does all of it run?")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    options = parser.parse_args()
    names = options.rows.split(",")
    for name in names:
        if name not in ROWS:
            parser.error(f"{name!r} is none of {', '.join(ROWS)}")
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    records = []
    for name in names:
        records.append(measure(name, options.tiny))
        print(name, records[-1]["time"], file=sys.stderr, flush=True)
    times = [r["time"] for r in records if r["time"] is not None]
    mean = statistics.geometric_mean(times) if times else None
    where = conditions_cuda("medians; time and first call as shares of the best of torch")
    if options.json:
        print(json.dumps({"conditions": where, "rows": records, "mean": mean}))
    else:
        print(f"{where}\n\n{plain(rows(records))}\n\ngeometric mean of times: {mean}")
    return int(options.check and any(map(missed, records)))


if __name__ == "__main__":
    sys.exit(main())
