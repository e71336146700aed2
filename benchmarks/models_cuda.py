"""Whole models of `meta` on an NVIDIA GPU beside torch eager, torch.compile, and torch.compile with
CUDA graphs (mode="reduce-overhead"), in one run.

    python benchmarks/models_cuda.py [--rows NAMES] [--contenders meta,eager] [--check]
    python benchmarks/models_cuda.py --rows bert1-train-fp16 --contenders meta --profile
    python benchmarks/models_cuda.py --markdown         # also replaces the table in
                                                        # docs/performance.md
    python benchmarks/models_cuda.py --tiny             # small networks: does all of it run?

The rows are in `models/cuda_rows.py`. `meta` runs the networks of its zoo, torch those of
transformers (attention by scaled_dot_product_attention) and torchvision, with equal random
parameters, without dropout. A training step is forward, backward and update, in `meta` one compiled
program; torch has ``torch.autocast``, fused optimizers, and images and kernels of convolutions in
channels_last. There is no loss scale. Inference is in half precision throughout: parameters, too.

Each contender of a row runs in a process of its own, so that its memory is its own; see
`models/cuda_worker.py` for what is measured. The losses of the first steps, or some of an
inference's results, are compared with those of torch eager; where they differ, the run fails.
*First call* is cold in a process with empty caches on disk, and warm in a second one.

The goals, which ``--check`` holds, are shares of the best torch contender's time (0.9 in each row),
memory, and cold first call (in rows that state them).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from models.cuda_contenders import NAMES
from models.cuda_rows import ROWS
from report import conditions_cuda, plain, replace_section, table_in_markdown

BEGIN = "<!-- written by benchmarks/models_cuda.py --markdown -->"
TOLERANCES = {"float16": 2e-2, "bfloat16": 3e-2, "tf32": 5e-3}
"""How far results may be apart, as a share of the largest of them."""
WARM = ("meta", "compile")
"""The contenders whose warm first call is measured: caches are the same in torch's two modes."""


def worker(row: str, contender: str, folder: str, options: list[str]) -> dict[str, Any]:
    """Run one contender in a process of its own; caches are in ``folder``."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "META_CACHE_DIR": f"{folder}/meta",
        "META_TF32": str(int(ROWS[row].precision == "tf32")),
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor-{contender}",
        "TRITON_CACHE_DIR": f"{folder}/triton-{contender}",
    }
    command = [sys.executable, "-m", "models.cuda_worker", row, contender, *options]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{row}: {contender} failed, exit status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(row: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return one record: what each contender measured, and how `meta` stands to the best."""
    flags = ["--tiny"] if options.tiny else []
    found: dict[str, dict[str, Any]] = {}
    for name in options.contenders:
        with tempfile.TemporaryDirectory() as folder:
            more = ["--profile"] if options.profile else []
            found[name] = worker(row, name, folder, [*flags, *more])
            if name in WARM and not options.no_warm:
                warm = worker(row, name, folder, [*flags, "--first-call-only"])
                found[name]["warm_call"] = warm["first_call"]
    compare(row, found)
    what = f"{ROWS[row].task(options.tiny).what} {'train' if ROWS[row].training else 'infer'}"
    result = {"row": row, "what": what, "contenders": found, **shares(found)}
    result["missed"] = missed(row, result)
    return result


def compare(row: str, found: dict[str, dict[str, Any]]) -> None:
    """SystemExit if a contender's results are not those of torch eager."""
    if "eager" not in found:
        return
    expected = torch.tensor(found["eager"]["values"])
    bound = TOLERANCES[ROWS[row].precision] * expected.abs().max()
    for name, record in found.items():
        difference = (torch.tensor(record["values"]) - expected).abs().max()
        if not difference <= bound:
            raise SystemExit(
                f"{row}: results of {name} are {record['values']}, not {found['eager']['values']}"
            )


def shares(found: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """Return the figures of `meta` as shares of the best torch contender's: that with the least
    time, of time and memory; and the least cold first call of torch.compile's.
    """
    others = [r for n, r in found.items() if n != "meta"]
    if "meta" not in found or not others:
        return {"time": None, "memory": None, "first_call": None}
    own, best = found["meta"], min(others, key=lambda r: r["ms"])
    compiled = [r["first_call"] for n, r in found.items() if n not in ("meta", "eager")]
    return {
        "time": own["ms"] / best["ms"],
        "memory": own["peak_mb"] / best["peak_mb"],
        "first_call": own["first_call"] / min(compiled) if compiled else None,
    }


def missed(row: str, result: dict[str, Any]) -> list[str]:
    """Return the goals that a record misses."""
    goals = {name: getattr(ROWS[row], name) for name in ("time", "memory", "first_call")}
    return [
        name.replace("_", " ")
        for name, goal in goals.items()
        if goal is not None and result[name] is not None and result[name] > goal
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
                *(f"{found[n]['ms']:.3f}" if n in found else "" for n in NAMES),
                *(f"{found[n]['peak_mb']:.0f}" if n in found else "" for n in NAMES),
                *(_first(found.get(n, {})) for n in ("meta", "compile", "reduce-overhead")),
                *(_share(record[key]) for key in ("time", "memory", "first_call")),
                ", ".join(f"{g:g}" for g in (row.time, row.memory, row.first_call) if g),
                ", ".join(record["missed"]),
            ]
        )
    return [head, *lines]


def summary(record: dict[str, Any]) -> str:
    """Return one line per contender: what is known before the table is."""
    return "\n".join(
        f"  {name:16s} {r['ms']:9.3f} ms ({r['host_ms']:.3f} on the host) {r['peak_mb']:8.0f} MB, "
        f"first call {_first(r)} s"
        for name, r in record["contenders"].items()
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
    if not torch.cuda.is_available():
        print("no CUDA device: this benchmark needs an NVIDIA GPU", file=sys.stderr)
        return 2
    records = []
    for i, name in enumerate(options.rows):
        print(f"{i + 1}/{len(options.rows)} {name}", file=sys.stderr, flush=True)
        records.append(measure(name, options))
        print(summary(records[-1]), file=sys.stderr, flush=True)
    where = conditions_cuda("medians of 50 calls between CUDA events")
    if options.json:
        print(json.dumps({"conditions": where, "rows": records}))
    else:
        print(f"{where}\n\n{plain(rows(records))}")
    if options.markdown:
        replace_section(BEGIN, f"{where}.\n\n{table_in_markdown(rows(records))}\n")
    return int(options.check and any(r["missed"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
