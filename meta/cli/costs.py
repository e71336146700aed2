"""``python -m meta costs``: what was measured of kernels, and moving it to other machines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from meta.base.device import Device, require
from meta.base.errors import FormatError, UnknownName
from meta.base.files import read_file, replacing
from meta.base.registry import OPERATORS, nearest
from meta.cli.table import columns, show
from meta.cost.record import Race, choose
from meta.cost.store import environment, exported, imported, races
from meta.dialect.core import candidates
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.preference import current


def run(options: argparse.Namespace) -> int:
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
    show(options, record, text)
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


def text(record: Mapping[str, Any]) -> str:
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
