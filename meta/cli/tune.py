"""``python -m meta tune``: measure the kernels of a model, and show what that changed; ``python -m
meta costs``: what was measured of kernels, and moving it to other machines.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from meta.base.device import Device, require
from meta.base.errors import FormatError, UnknownName
from meta.base.files import read_file, replacing
from meta.base.registry import OPERATORS, nearest
from meta.cli.compile import compile_target, random_arguments
from meta.cli.table import columns, show
from meta.cost.chooser import how_in_programs, known_race, measured, tuned
from meta.cost.record import Cost, Race, choose
from meta.cost.store import environment, exported, imported, races
from meta.dialect.core import candidates
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.fused import CONFIG
from meta.dialect.core.openv import config_of
from meta.dialect.core.preference import current
from meta.vm import Executable
from meta.vm.benchmark.interleave import Lane, clock_of, interleave, warm_lane
from meta.vm.compiler.code import FusedRef

ROUNDS, WARM = 30, 3
"""Runs of each program that are timed, in turns, and how many before them."""


def run_tune(options: argparse.Namespace) -> int:
    """Print what changed."""
    with tuned(measures=False):
        before, types = compile_target(options)
    with measured(options.budget) as spent:
        after, _ = compile_target(options)
    arguments = random_arguments(types, after.device)
    times = measure_interleaved([before, after], arguments, after.device)
    record = {
        "target": options.target,
        "inputs": list(map(str, types)),
        "device": str(after.device),
        "measured": spent.races,
        "seconds": spent.seconds,
        "changes": list(changes(after)),
        "before_us": times[0],
        "after_us": times[1],
    }
    show(options, record, tune_text)
    return 0


def changes(executable: Executable) -> Iterator[dict[str, Any]]:
    """Iterate over the instructions that measuring gave another kernel than priority would have:
    the call, both kernels and their microseconds.
    """
    functions = executable.module.functions
    for entry in executable.explain():
        if isinstance(entry.site.kernel, FusedRef):
            function = functions[entry.site.kernel.function]
            race = known_race(function, executable.device, how_in_programs(executable.device))
            config = config_of(function.attrs.get(CONFIG, ""))
            if race is not None and config:
                dialect = entry.site.kernel.dialect
                pair = race.of(dialect), race.of(dialect, config)
                yield _change(entry.site.kernel.function, *pair)
            continue
        for call in entry.calls:
            first = next((c for c in call if c.env is not None), None)
            if call.choice is None or call.race is None or first is None:
                continue
            default = call.race.of(first.dialect_op.dialect.name)
            if default is not None and default.name != call.choice.name:
                yield _change(call.title, default, call.choice)


def _change(call: str, before: Cost | None, after: Cost | None) -> dict[str, Any]:
    def time_of(cost: Cost | None) -> float | None:
        return None if cost is None or cost.forward is None else cost.forward.median

    return {
        "call": call,
        "before": None if before is None else before.name,
        "after": None if after is None else after.name,
        "before_us": time_of(before),
        "after_us": time_of(after),
    }


def measure_interleaved(
    programs: Sequence[Executable], arguments: Sequence[Any], device: Device
) -> list[float]:
    """Return the microseconds of a run of each program, medians of runs in turns."""
    clock = clock_of(device, "eager")

    def lane_of(program: Executable) -> Lane:
        run = partial(program, *arguments)
        for _ in range(WARM):
            run()
        return warm_lane(clock, lambda count: [run] * count)

    lanes = list(map(lane_of, programs))
    interleave(lanes, clock, rounds=ROUNDS)
    return [lane.timing().median for lane in lanes]


def tune_text(record: Mapping[str, Any]) -> str:
    """Return the record for a terminal."""
    what = f"{record['measured']} calls measured in {record['seconds']:.1f} s"
    lines = [f"{record['target']} on {record['device']}: {what}"]
    counted: dict[tuple[Any, ...], int] = {}
    for change in record["changes"]:
        row = tuple(change.values())
        counted[row] = counted.get(row, 0) + 1
    rows = [
        [f"{count} x", f"{before} -> {after}", f"{was:.2f} -> {now:.2f} us", call]
        for (call, before, after, was, now), count in counted.items()
        if was is not None and now is not None
    ]
    lines += columns(rows) if rows else ["no kernel changed"]
    before, after = record["before_us"], record["after_us"]
    lines.append(f"a run: {before:.1f} us before, {after:.1f} us now ({after / before:.2f}x)")
    return "\n".join(lines)


def run_costs(options: argparse.Namespace) -> int:
    """Import, export, or print what is kept."""
    device = require(options.device)
    if options.operator is not None and options.operator not in (*OPERATORS, *DIALECTS):
        raise UnknownName(
            f"there is no operator {options.operator!r}", hint=nearest(options.operator, OPERATORS)
        )
    record: dict[str, Any] = {"device": str(device)}
    if options.source:
        record["imported"] = imported(_read(options.source))
    if options.export:
        content = exported()
        with replacing(Path(options.export)) as part:
            part.write_text(json.dumps(content), "utf-8")
        record["exported"] = sum(len(one["races"]) for one in content["environments"])
    # What counts for neighbouring extents, too, is kept a second time for these.
    kept = (r for r in races(device) if not r.bucket)
    wanted = (r for r in kept if options.operator in (None, r.key.operator))
    shown = not (options.source or options.export)
    record["environment"] = json.loads(environment(device))
    record["races"] = [_record(race, device) for race in wanted] if shown else []
    show(options, record, costs_text)
    return 0


def _read(path: str) -> Any:
    try:
        return json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise FormatError("costs are a JSON file", found=f"{path}: {error}") from None


def _record(race: Race, device: Device) -> dict[str, Any]:
    chosen = choose(race.costs, _order(race, device))
    return {
        "operator": race.key.operator,
        "call": race.key.call,
        "how": race.key.how,
        "when": datetime.fromtimestamp(race.when).astimezone().isoformat(" ", "seconds"),
        "file": str(race.place),
        "costs": [{**c.record(), "chosen": c is chosen} for c in race.costs],
    }


def _order(race: Race, device: Device) -> list[str]:
    """Return the dialects as a compiled program asks them."""
    if race.key.operator not in OPERATORS:
        return [race.key.operator]
    found = candidates(OPERATORS[race.key.operator], current(), device)
    return [one.dialect.name for one in found]


def costs_text(record: Mapping[str, Any]) -> str:
    """Return the record for a terminal."""
    lines = [f"{record['environment']['device']}, {record['device']}"]
    for verb in ("imported", "exported"):
        if verb in record:
            lines.append(f"{verb} {record[verb]} calls")
    if not record["races"] and len(lines) == 1:
        lines.append("nothing was measured (python -m meta tune, or META_TUNE=on)")
    for race in record["races"]:
        lines += ["", f"{race['call']}  ({race['how']}, {race['when']})"]
        lines += columns([_row(cost) for cost in race["costs"]])
    return "\n".join(lines)


def _row(cost: Mapping[str, Any]) -> list[str]:
    name = "@".join(filter(None, (cost["dialect"], cost["config"])))
    timings = [("", cost["forward_us"]), ("gradient ", cost["backward_us"])]
    shown = [
        f"{what}{t[0]:.2f} us ({t[1]:.2f} to {t[2]:.2f}, {t[3]} samples)"
        for what, t in timings
        if t is not None
    ]
    mark = "->" if cost["chosen"] else ""
    return [mark, name, ", ".join(shown) or cost["refused"] or "not timed"]
