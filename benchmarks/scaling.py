"""Predicts the training steps of distributed.py on meshes that are not there, on any machine.

    python benchmarks/scaling.py --one gpt2=8.92 [--ranks 2 8 64 1024] [--zero 0 3]
    python benchmarks/scaling.py --records FILE         # a step of one rank: what distributed.py
                                                        # measured and wrote there
    python benchmarks/scaling.py --one gpt2=8.92 --markdown  # also rewrites docs/distributed.md
    python benchmarks/scaling.py --one gpt2=1 --tiny    # small networks: does all of it run?

Each program is traced and lowered by a rank of a planned mesh, for a GPU if there is one, and never
run. For the CPU it has the same exchanges, and needs up to a fifth more memory, since fewer kernels
write over what they read. What kernels take is the measured step of one rank, in milliseconds,
spread over them by estimates; what exchanges take follows from links: see `meta.analysis.scaling`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from command import add_names, parser_of
from models.rank_contenders import PRECISION, RATE, WEIGHT_DECAY
from models.rank_rows import RANK_ROWS
from report import DISTRIBUTED, plain, replace_section, table_in_markdown

import meta
from meta.analysis import ScalingReport
from meta.analysis.scaling import Exchange
from meta.base.device import Device
from meta.cost.interconnect import links_of
from meta.ir import Module
from meta.optim import with_adamw
from meta.train.objective import Objective
from meta.vm.compilation import to_program
from meta.vm.compiler.pipeline import pipeline

LINKS = links_of(Device("cuda"))
"""What GPUs are connected by, as measured, or else by default."""
BEGIN = "<!-- written by benchmarks/scaling.py --markdown -->"
HEAD = ["work", "ZeRO", "ranks", "hosts", "step, ms", "to one rank", "exchanges, ms"]
HEAD += ["not hidden, ms", "exchanged, MB", "memory of a rank, MB"]


def program(row: str, zero: int, ranks: int, tiny: bool, device: str) -> Module:
    """Return the lowered step of a row for so many ranks."""
    task = RANK_ROWS[row].task(tiny, 1)
    one, inputs, targets = (meta.array(x, device=device) for x in (1.0, *task.batch()))
    # As on CUDA: it decides what is kept.
    options = meta.PassContext(config={"fuse_operators": {"recompute": True}})
    with meta.distributed.planned(ranks), options:
        model = Objective(task.ours().to(device=device), task.loss)
        step = with_adamw(RATE, weight_decay=WEIGHT_DECAY, over="dp", zero=zero)(model)
        run = meta.amp.autocast(step, PRECISION)
        traced = to_program(run, (one, (inputs,), (targets,)), {})
        return pipeline(Device(device))(traced.module)


def reports(
    row: str, one: float, zero: int, counts: list[int], tiny: bool, device: str
) -> list[ScalingReport]:
    """Return what is predicted for numbers of ranks, from the milliseconds of a step of one."""
    found: list[ScalingReport] = []
    module = None
    for ranks in counts:
        # A program of sums alone is for any number of ranks; with parts, or where rows of a table
        # are gathered, it is for one.
        if module is None or not all(map(is_sum, found[-1].rows)):
            module = program(row, zero, ranks, tiny, device)
        found.append(meta.analysis.scaling(module, ranks, LINKS, kernels=1e3 * one))
        print(f"{row}, zero={zero}: {found[-1]}\n", file=sys.stderr, flush=True)
    return found


def is_sum(row: Exchange) -> bool:
    """Whether a collective is a sum of whole tensors."""
    return "all_reduce" in row.operator


def line(row: str, one: float, zero: int, report: ScalingReport, tiny: bool) -> list[str]:
    """Return a line of the table."""
    return [
        f"{RANK_ROWS[row].task(tiny, 1).what}: {one:.4g} ms",
        str(zero or "none"),
        str(report.ranks),
        str(report.hosts),
        f"{report.total / 1e3:.2f}",
        f"{report.total / 1e3 / one:.2f}x",
        f"{report.communication / 1e3:.2f}",
        f"{report.exposed / 1e3:.2f}",
        f"{sum(r.bytes for r in report.rows) / 2**20:.0f}",
        f"{report.memory_bytes / 2**20:.0f}",
    ]


def single_rank_times(file: Path) -> dict[str, float]:
    """Return the milliseconds of a step of one rank by row, of what distributed.py wrote."""
    records = map(json.loads, file.read_text().splitlines())
    ours = (r for r in records if (r["contender"], r["ranks"]) == ("meta", 1))
    return {r["row"]: r["ms"] for r in ours if "failed" not in r}


def _named(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in RANK_ROWS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(RANK_ROWS)}")
    return name, float(value)


def main() -> int:
    """Predict and print."""
    parser = parser_of(__doc__)
    add_names(parser, "--rows", RANK_ROWS)
    parser.add_argument(
        "--one", type=_named, nargs="+", default=[], metavar="ROW=MS", help="steps of one rank"
    )
    parser.add_argument("--records", type=Path, metavar="FILE", help="of distributed.py")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 64, 1024])
    parser.add_argument("--zero", type=int, nargs="+", choices=range(4), default=[0, 3])
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="what programs are compiled for; by default cuda if it is there",
    )
    parser.add_argument("--tiny", action="store_true", help="small networks, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--markdown", action="store_true", help="also rewrite docs/distributed.md")
    options = parser.parse_args()
    times = {**(single_rank_times(options.records) if options.records else {}), **dict(options.one)}
    names = [name for name in options.rows if name in times]
    if not names:
        parser.error("no row has a step of one rank: --one ROW=MS, or --records FILE")
    if options.markdown and options.tiny:
        parser.error("--markdown is for full sizes")
    table, figures = [HEAD], []
    for name in names:
        for zero in options.zero:
            given = times[name], zero, options.ranks, options.tiny, options.device
            for report in reports(name, *given):
                table.append(line(name, times[name], zero, report, options.tiny))
                figures.append(dict(zip(HEAD, table[-1], strict=True)))
    print(json.dumps({"rows": figures}) if options.json else plain(table))
    if options.markdown:
        replace_section(BEGIN, f"{table_in_markdown(table)}\n", DISTRIBUTED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
