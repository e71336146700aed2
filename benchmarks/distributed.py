"""Training steps on several devices of a machine beside torch's DistributedDataParallel and FSDP2,
weak scaling: each rank has a batch of the same size.

    python benchmarks/distributed.py [--rows gpt2,bert] [--contenders meta,ddp] [--gpus 1 2]
    python benchmarks/distributed.py --rows gpt2 --losses        # also 200 steps' losses
    python benchmarks/distributed.py --tiny --device cpu         # on Gloo: does all of it run?

The rows are in `models/rank_rows.py`, the contenders in `models/rank_contenders.py`: all train in
mixed precision of bfloat16 with AdamW, `meta` in one compiled program, torch with torch.compile,
autocast (FSDP2: its policy of bfloat16 parameters) and fused AdamW. Each has a process for each
rank. Contenders of a row compile at the same time, as many as the device's memory holds, and then
take turns (``--apart``: one after the other, so that first calls mean something). A step's time is
that of its slowest rank, between CUDA events and without waiting in between. *MB* is the most that
torch's allocator had given out on a rank, parameters included.

The losses of the first steps are compared: with ``--losses`` those of so many steps with those of
`meta` on one device that has the batches of all ranks in one; of ResNet-50 with those of DDP, since
batch normalisation is each rank's own. A contender that ends with an error, or does not answer
within ``--limit`` seconds, is a row that says so. ``--records FILE`` gets a line of JSON for each
contender as soon as it is measured. `meta.analysis.scaling` predicts the step of `meta` on these
ranks and on more, from that of one rank, if it took turns with them. The goals that ``--check``
holds are in `models/rank_records.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from command import add_names, add_outputs, parser_of
from models.rank_contenders import OURS, STEP, THEIRS
from models.rank_records import Key, Ranks, Record, compare, missed, named
from models.rank_rows import RANK_ROWS
from report import conditions, conditions_cuda, has_compiler, say, write

DEFAULT = ("meta", "ddp", "fsdp2", "zero3")
LOSS_STEPS, FEW = 200, 4


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    head = ["work", "contender", "ranks", "ms", "p20", "p80", "host ms", "to one", "to best torch"]
    head += ["MB", "reserved MB", "graphs", "first call, s", "losses apart", "missed"]
    lines = [head]
    for row in records:
        for i, (key, record) in enumerate(row["contenders"].items()):
            lines.append([row["what"], key[0], str(key[1]), *_cells(row, key, record)])
            lines[-1].append("; ".join(row["missed"]) if i == 0 else "")
    return lines


def _cells(row: dict[str, Any], key: Key, record: Record) -> list[str]:
    if "failed" in record:
        return ["failed", *[""] * 10]
    found, most = row["contenders"], row["most"]

    def share(others: list[Key]) -> str:
        times = [found[k]["ms"] for k in others if "failed" not in found.get(k, {"failed": 1})]
        return f"{record['ms'] / min(times):.2f}x" if times and key not in others else ""

    graphs = record.get("graphs")
    return [
        *(f"{record[name]:.3f}" for name in ("ms", "p20", "p80", "host_ms")),
        share([(key[0], 1)]) if key[1] > 1 else "",
        share([(name, most) for name in THEIRS]) if key[1] == most else "",
        *(f"{record[n]:.0f}" if n in record else "" for n in ("peak_mb", "reserved_mb")),
        "" if graphs is None else "/".join(map(str, graphs)),
        f"{record['first_call']:.1f}" if record["crowd"] == 1 else "",
        f"{record['loss_apart']:.1e}" if "loss_apart" in record else "",
    ]


def notes(records: list[dict[str, Any]]) -> list[str]:
    """Return what follows on the table: references of losses, failures, what is in no graph, and
    what is predicted of other meshes.
    """
    found = []
    for row in records:
        if row["reference"] is not None:
            losses = row["contenders"][row["reference"]]["losses"]
            found.append(
                f"{row['row']}: losses of {len(losses)} steps beside {named(row['reference'])}, "
                f"{losses[0]:.4f} to {losses[-1]:.4f}"
            )
        for key, record in row["contenders"].items():
            if "failed" in record:
                found.append(f"{row['row']} {named(key)} failed: {record['failed']}")
            for reason in record.get("not_in_graphs", []):
                found.append(f"{row['row']} {named(key)}: not in a graph: {reason}")
            if "predicted" in record:
                meshes = (
                    f"x{p['ranks']} {p['ms']:.3f} ms, {p['memory_mb']:.0f} MB"
                    for p in record["predicted"]
                )
                text = "; ".join(meshes)
                found.append(f"{row['row']} {named(key)} predicted from one rank's step: {text}")
    return found


def plain_records(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records whose keys JSON has."""
    return [
        row
        | {"reference": None if row["reference"] is None else named(row["reference"])}
        | {"contenders": {named(key): record for key, record in row["contenders"].items()}}
        for row in records
    ]


def read() -> argparse.Namespace:
    """Return the options."""
    parser = parser_of(__doc__)
    add_names(parser, "--rows", RANK_ROWS)
    add_names(parser, "--contenders", [*DEFAULT, STEP, *(n for n in OURS if n not in DEFAULT)])
    parser.set_defaults(contenders=list(DEFAULT))
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2], help="numbers of ranks")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default cuda if it is there")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender (5)")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of a turn (10)")
    parser.add_argument(
        "--losses",
        type=int,
        nargs="?",
        const=LOSS_STEPS,
        metavar="STEPS",
        help=f"compare losses of so many steps ({LOSS_STEPS}) with one device's",
    )
    parser.add_argument("--reduce-dtype", choices=("float32", "bfloat16"), help="of gradients")
    parser.add_argument(
        "--passes",
        type=json.loads,
        metavar="JSON",
        help="options of meta.PassContext, such as "
        """'{"config": {"bucket_collectives": {"bucket_mib": 25}}}'""",
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for an answer (300)")
    parser.add_argument("--apart", action="store_true", help="one contender at a time")
    parser.add_argument("--no-compile", action="store_true", help="torch without torch.compile")
    parser.add_argument("--records", type=Path, metavar="FILE", help="also write figures there")
    parser.add_argument(
        "--trace", type=Path, metavar="DIR", help="also write traces of torch.profiler there"
    )
    parser.add_argument("--tiny", action="store_true", help="small networks, to see that it runs")
    add_outputs(parser, page=False)
    options = parser.parse_args()
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if min(options.gpus) < 1 or min(options.rounds, options.steps) < 1 or options.limit <= 0:
        parser.error("--gpus, --rounds, --steps and --limit are positive")
    if options.trace is not None:
        options.trace.mkdir(parents=True, exist_ok=True)
    if options.losses is not None and options.losses < 1:
        parser.error("--losses is a number of steps")
    if options.device == "cuda" and max(options.gpus) > torch.cuda.device_count():
        parser.error(f"there are {torch.cuda.device_count()} GPUs")
    return options


def _host_gigabytes() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed, or a contender failed."""
    options = read()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended
    compiler = not options.no_compile and (options.device == "cuda" or has_compiler())
    flags = ["--tiny"] * options.tiny + ["--no-compile"] * (not compiler)
    if options.reduce_dtype is not None:
        flags += ["--reduce-dtype", options.reduce_dtype]
    if options.passes is not None:
        flags += ["--passes", json.dumps(options.passes)]
    turns = f"medians of {options.rounds} turns of {options.steps} steps"
    turns += ", of small networks" * options.tiny
    if options.device == "cuda":
        where = conditions_cuda(f"{turns}, {torch.cuda.device_count()} GPUs")
        gigabytes = torch.cuda.get_device_properties(0).total_memory / 2**30
    else:
        where, gigabytes = conditions(compiler, turns), _host_gigabytes()
    ranks = Ranks(
        options.contenders,
        sorted(set(options.gpus)),
        options.rounds,
        options.steps,
        FEW if options.losses is None else options.losses,
        options.limit,
        options.device,
        1e6 if options.tiny else gigabytes,
        options.apart,
        options.losses is not None,
        tuple(flags),
        options.records,
        options.trace,
    )
    records = []
    for name in options.rows:
        found = ranks.measure(name)
        reference = compare(found, ranks.most)
        bad = missed(found, ranks.most, options.device)
        say(f"{name}: {'; '.join(bad) or 'all goals are met'}")
        what = RANK_ROWS[name].task(options.tiny, 1).what
        record = {"row": name, "what": what, "most": ranks.most, "reference": reference}
        records.append({**record, "missed": bad, "contenders": found})
    write(options, where, {"rows": plain_records(records)}, rows(records), notes(records))
    failed = any("failed" in r for row in records for r in row["contenders"].values())
    return int(failed or (options.check and any(row["missed"] for row in records)))


if __name__ == "__main__":
    sys.exit(main())
