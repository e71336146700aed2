"""`meta.interop.torch.training_step` on an NVIDIA GPU beside the step that an expert writes:
torch.compile of the loss, a fused optimizer, and all of it captured as one CUDA graph.

    python benchmarks/step_cuda.py --together [--rows bert-train-fp16,every] [--check]
    python benchmarks/step_cuda.py --losses 200 [--check]   # do the losses follow eager's?
    python benchmarks/step_cuda.py --markdown           # also replaces the table in
                                                        # docs/performance.md
    python benchmarks/step_cuda.py --tiny --together    # small networks: does all of it run?

The rows are six models of transformers and six of timm and torchvision, *every* all trainings of
dynamo_cuda.py; what is measured is as there. *captured* is the peer, or *reduce-overhead*, which
leaves the graphs to Inductor, where that is faster. A captured step has its batch in place: a loop
would copy the next one there, as *training_step* does.

``--losses N`` trains each row for N steps, eagerly, eagerly from parameters that are off by a
rounding, and by *training_step*, one after the other, and times nothing
(`models/loss_curves.py`). With ``--tiny`` it needs no GPU.

The goals, which ``--check`` holds: each row at most 0.9 of the time of the best peer, and 0.76 in
the geometric mean; losses as far from eager's as rounding brings these.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import torch
from models.contenders import CAPTURED, STEP
from models.cuda_command import measure, parser_for
from models.cuda_records import failed, figure, share, shares, what
from models.cuda_strangers import EVERY_ROW
from models.loss_curves import curves
from report import write

BEGIN = "<!-- written by benchmarks/step_cuda.py --markdown -->"
TRANSFORMERS = ("bert-fp16", "gpt2-bf16", "roberta-bf16", "smollm-bf16", "mistral-bf16", "t5-bf16")
IMAGES = ("resnet50-fp16", "vit-bf16", "swin-bf16", "convnext-bf16", "regnet-bf16", "mixer-bf16")
ROWS = [name.replace("-", "-train-") for name in (*TRANSFORMERS, *IMAGES)]
WORDS = {"every": [name for name, row in EVERY_ROW.items() if row.training]}
CONTENDERS = (STEP, "eager", "reduce-overhead", CAPTURED)
MOST, MOST_MEAN = 0.9, 0.76
"""The most that a row's share of the peer's time may be, and their mean."""


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    head = ["work", "precision", *(f"{n}, ms" for n in CONTENDERS)]
    head += [*(f"{n}, MB" for n in CONTENDERS), "time", "memory"]
    lines = []
    for record in records:
        row, found = EVERY_ROW[record["row"]], record["contenders"]
        lines.append(
            [
                record["what"],
                f"{row.precision}, {row.optimizer}",
                *(figure(found.get(n), "ms", 3) for n in CONTENDERS),
                *(figure(found.get(n), "peak_mb", 0) for n in CONTENDERS),
                share(record["time"]),
                share(record["memory"]),
            ]
        )
    return [head, *lines]


def compare_losses(options: argparse.Namespace) -> int:
    """Print losses beside eager's; return 1 if ``--check`` finds them farther off than noise."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    off = []
    for name in options.rows:
        found = curves(name, options.losses, device, options.tiny)
        print(found, flush=True)
        off += [name] * (not found.ratio() <= 1)
    print(f"Beyond the noise: {', '.join(off) or 'none'}.")
    return int(options.check and bool(off))


def main() -> int:
    """Measure and print; return 1 if a contender failed, or ``--check`` finds a goal missed."""
    parser = parser_for(__doc__, ROWS, CONTENDERS, WORDS)
    parser.add_argument("--losses", type=int, metavar="N", help="compare the losses of N steps")
    options = parser.parse_args()
    if options.losses:
        if not (torch.cuda.is_available() or options.tiny):
            parser.error("no CUDA device")
        return compare_losses(options)
    where, found = measure(parser, options, ROWS, ())
    records = []
    for name in options.rows:
        peers = {n: r for n, r in found[name].items() if n != "eager"}
        texts = {"row": name, "what": what(name, options.tiny), "contenders": found[name]}
        records.append({**texts, **shares(STEP, peers)})
    times = [r["time"] for r in records if r["time"] is not None]
    mean = statistics.geometric_mean(times) if times else None
    missed = [r["row"] for r in records if r["time"] is not None and r["time"] > MOST]
    missed += ["the mean"] * (mean is not None and mean > MOST_MEAN)
    notes = [f"Geometric mean: {share(mean)}. Goals missed: {', '.join(missed) or 'none'}."]
    figures = {"rows": records, "mean": mean, "missed": missed}
    write(options, where, figures, rows(records), notes, BEGIN)
    return int(failed(records) or (options.check and bool(missed)))


if __name__ == "__main__":
    sys.exit(main())
