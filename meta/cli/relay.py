"""``python -m meta relay``: Relay programs of TVM, and what becomes of every operator that Relay
has had. The table in `docs/relay.md` is written from the same records.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from typing import Any

import meta
from meta.base.device import require
from meta.base.errors import ArgumentError
from meta.cli.compile import tensor_type
from meta.cli.importing import compiled, preferred, read_inputs, write_results
from meta.cli.table import columns, section, show
from meta.frontend import relay
from meta.frontend.core import grouped
from meta.frontend.relay import ast
from meta.frontend.relay.convert import RelayProgram
from meta.frontend.relay.convert.program import unsupported
from meta.frontend.relay.convert.types import element_type, relay_text
from meta.frontend.relay.model import load_module
from meta.frontend.relay.params import pair
from meta.frontend.relay.registry import operators
from meta.frontend.relay.registry import relay as converters
from meta.ir import TensorType
from meta.op.core import tree

# info


SHOWN_LOCATIONS = 3
"""How many locations of what is not supported are listed."""


def run_info(options: argparse.Namespace) -> int:
    """Print what a program is; 1 if it cannot be converted."""
    found = info(options.file, options.params)
    show(options, found, info_text)
    return 1 if found["unsupported"] else 0


def info(file: str, params: str | None) -> dict[str, Any]:
    """Return what is known of a program without converting it, as values that JSON has."""
    module, arrays = load_module(file, params)
    program = RelayProgram(module)
    pairing = pair(module, arrays)
    main = program.main
    operators = Counter(c.op.name for c in program.calls() if isinstance(c.op, ast.Op))
    return {
        "file": os.fspath(file),
        "tvm_version": None if module.version is None else ".".join(map(str, module.version)),
        "text_version": module.text_version,
        "functions": sorted(module.functions),
        "types": sorted(module.types),
        "inputs": [{"name": v.name, "type": relay_text(v.type)} for v in pairing.free],
        "parameters": [
            {"name": pairing.bound[v], "type": relay_text(v.type)}
            for v in main.params
            if v in pairing.bound
        ],
        "result": relay_text(main.result_type),
        "unused_params": pairing.unused,
        "operators": dict(operators.most_common()),
        "unsupported": [
            {
                "name": group[0].operator,
                "why": group[0].why,
                "hint": group[0].hint,
                "count": len(group),
                "places": [failure.place for failure in group if failure.place][:SHOWN_LOCATIONS],
            }
            for group in grouped(unsupported(program))
        ],
        "warnings": module.warnings,
    }


def info_text(found: dict[str, Any]) -> str:
    """Return the record for a terminal."""
    wrote = f", written by TVM {found['tvm_version']}" if found["tvm_version"] else ""
    lines = [f"{found['file']}{wrote}", f"result: {found['result']}"]
    for title in ("inputs", "parameters"):
        rows = [[p["name"], p["type"]] for p in found[title]]
        lines += section(f"{title} ({len(rows)})", rows)
    lines += section("operators", [[n, count] for n, count in found["operators"].items()])
    rows = [[u["name"], u["count"], u["why"], u["hint"] or ""] for u in found["unsupported"]]
    lines += section("not supported", rows)
    lines += section("arrays that fit no parameter", [[n] for n in found["unused_params"]])
    return "\n".join([*lines, *section("warnings", [[w] for w in found["warnings"]])])


# run


def run_program(options: argparse.Namespace) -> int:
    """Run a program and write its results."""
    device, preference = require(options.device), preferred(options.dialect)
    model = relay.load(options.file, options.params)
    model.to(device=device)
    given = read_inputs(options.inputs, model)
    executable, arrays = compiled(model, given, device, preference)
    results = [a.numpy() for a in tree.flatten(executable(*arrays))[0]]
    types = write_results(results, options.out)
    record = {"device": str(device), "out": options.out, "results": types}
    show(options, record, lambda _: "\n".join(f"{n}: {type_}" for n, type_ in types.items()))
    return 0


# convert


def run_convert(options: argparse.Namespace) -> int:
    """Compile a program for its input types and save it."""
    device = require(options.device)
    model = relay.load(options.file, options.params)
    model.to(device=device)
    types = [tensor_type(text) for text in options.input] or declared_types(model)
    executable = meta.vm.compile(model, *types, device=device)
    executable.save(options.output)
    inputs = list(map(str, types))
    record = {"device": str(device), "output": options.output, "inputs": inputs}
    line = f"{options.output}: inputs {', '.join(inputs)}; meta.vm.load reads it"
    show(options, record, lambda _: line)
    return 0


def declared_types(model: relay.RelayModel) -> list[TensorType]:
    """Return the types of a model's inputs as its program declares them. Each unknown dimension is
    a symbolic one. ArgumentError for an input that is not declared to be a tensor.
    """
    found: list[TensorType] = []
    for name, type_ in zip(model.input_names, model.input_types, strict=True):
        if not isinstance(type_, ast.TensorType):
            raise ArgumentError(
                f"the type of the input {name!r} is not declared",
                found=relay_text(type_),
                hint="say it: --input 'float32[1,3,224,224]' for each input",
            )
        dims = (
            str(d) if isinstance(d, int) else f"n{len(found)}_{i}"
            for i, d in enumerate(type_.shape)
        )
        found.append(tensor_type(f"{element_type(type_.dtype)}[{', '.join(dims)}]"))
    return found


COMMAND = "python -m meta relay operators --markdown"


def run_operators(options: argparse.Namespace) -> int:
    """Print the operators; returns 0."""
    found = records()
    if options.json:
        print(json.dumps(found, indent=2))
    elif options.markdown:
        print(markdown(found))
    else:
        rows = [[r["name"], f"{r['since']} - {r['until']}", _outcome(r)] for r in found]
        print("\n".join(columns([["operator", "TVM", "becomes"], *rows])))
    return 0


def records() -> list[dict[str, Any]]:
    """Return one record per operator, by name: since and until which TVM it exists, whether it is
    converted, the base operators that it becomes, or the reason.
    """
    found = []
    for name, facts in sorted(operators().items()):
        converter = converters.get(name)
        found.append(
            {
                "name": name,
                "since": facts.since,
                "until": facts.until,
                "converted": converter is not None and converter.function is not None,
                "becomes": [] if converter is None else [op.name for op in converter.becomes],
                "reason": "there is no converter" if converter is None else converter.reason,
            }
        )
    return found


def markdown(found: list[dict[str, Any]]) -> str:
    """Return the tables of `docs/relay.md`."""
    done = [r for r in found if r["converted"]]
    rest = [r for r in found if not r["converted"]]
    lines = [f"Converted: {len(done)} of {len(found)} operators.", ""]
    lines += ["| operator | TVM | becomes |", "|---|---|---|"]
    lines += [f"| `{r['name']}` | {r['since']} - {r['until']} | {_outcome(r)} |" for r in done]
    lines += [
        "",
        f"Not converted: {len(rest)}.",
        "",
        "| operator | TVM | reason |",
        "|---|---|---|",
    ]
    lines += [f"| `{r['name']}` | {r['since']} - {r['until']} | {_outcome(r)} |" for r in rest]
    return "\n".join(lines)


def _outcome(record: dict[str, Any]) -> str:
    if not record["converted"]:
        return str(record["reason"])
    return ", ".join(record["becomes"]) or "a composition"
