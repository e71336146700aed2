"""The command line that models_cuda.py and dynamo_cuda.py have in common, and what it does."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from command import add_names, add_outputs, parser_of
from report import conditions_cuda
from worker_processes import compile_bytecode

from models.cuda_records import RowRecords, collect, read_rows
from models.cuda_running import Run
from models.cuda_strangers import EVERY_ROW


def parser_for(
    description: str | None,
    rows: Collection[str],
    contenders: Collection[str],
    words: Mapping[str, Collection[str]] | None = None,
) -> argparse.ArgumentParser:
    """Return a parser for rows and contenders, of which all are the default. words: what stands for
    several rows.
    """
    parser = parser_of(description)
    add_names(parser, "--rows", rows, words)
    add_names(parser, "--contenders", contenders)
    parser.add_argument(
        "--together",
        action="store_true",
        help="let many contenders compile at the same time, which takes a tenth of the time; first "
        "calls then only where there is a goal for them, one after the other",
    )
    parser.add_argument(
        "--lanes",
        type=int,
        default=1,
        metavar="N",
        help="together, N first calls at the same time, each on cores of its own",
    )
    parser.add_argument(
        "--records",
        type=Path,
        metavar="FILE",
        help="keep rows in a file as soon as they are measured; those that it has without a "
        "failure are not measured again, so a run that was ended goes on",
    )
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    parser.add_argument(
        "--trace-to", type=Path, metavar="FOLDER", help="also keep traces there, of each contender"
    )
    parser.add_argument("--tiny", action="store_true", help="small networks, to see that it runs")
    add_outputs(parser)
    return parser


def measure(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    rows: Collection[str],
    first_call: Collection[tuple[str, str]],
    warm: tuple[str, ...] = (),
) -> tuple[str, dict[str, RowRecords]]:
    """Return the conditions and the records of a command line, by row and contender.

    rows: all there are. first_call: rows and contenders whose first call a goal is for. warm:
    contenders whose warm first call is measured.
    """
    if options.markdown and (set(options.rows) != set(rows) or options.tiny):
        parser.error("--markdown is for all rows, in their full size")
    before, found = read_rows(options.records) if options.records else (None, {})
    whole = {n: f for n, f in found.items() if set(f) >= set(options.contenders)}
    whole = {n: f for n, f in whole.items() if not any("failed" in r for r in f.values())}
    left = {name: EVERY_ROW[name] for name in options.rows if name not in whole}
    if before is not None and not left:
        return before, {name: whole[name] for name in options.rows}
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    sizes = ", of small networks" * options.tiny
    conditions = conditions_cuda(f"medians of 50 calls between CUDA events{sizes}")
    if before not in (None, conditions):
        parser.error(f"{options.records} has rows of {before}; this is {conditions}")
    flags = ["--tiny"] * options.tiny + ["--profile"] * options.profile
    flags += ["--trace-to", str(options.trace_to)] if options.trace_to else []
    compile_bytecode()
    cold = frozenset(first_call)
    together = options.together
    run = Run(left, options.contenders, cold, warm, together, tuple(flags), options.lanes)
    whole |= collect(run, conditions, options.records)
    return conditions, {name: whole[name] for name in options.rows}
