"""An operator's card: everything that is registered about it, as one plain record.

The text and JSON of ``python -m meta op NAME`` and ``python -m meta ops`` come from this record,
and so does docs/operators.md. A value of None stands for something that nobody registered. To show
a further aspect, add it here and a section to `card_text`.
"""

from __future__ import annotations

import inspect
import math
import typing
from typing import Any

import meta.frontend.relay.converters  # noqa: F401  # which register themselves
from meta.amp import rule_of as cast_rule_of
from meta.base.device import Device, available
from meta.base.registry import OPERATORS
from meta.base.source import short_site
from meta.cli.table import section
from meta.dialect.core import FUSED_ONLY, DialectOp, candidates, dialects, level_text
from meta.dialect.core.preference import Preference, current
from meta.dialect.core.scope import GENERIC
from meta.ir.types import Type
from meta.op.core import Op, Slot


def summary(op: Op) -> str:
    """Return the first line of an operator's documentation."""
    return (inspect.getdoc(op) or "").partition("\n")[0]


def card(op: Op) -> dict[str, Any]:
    """Return what is known of an operator, as values that JSON has.

    Backends are loaded. ``kernels`` are in the order in which compiled programs ask them under
    the preference in force (`meta.dialect.prefer`, ...); ``here`` says per device of this machine
    what would become of each. Places are "file:line".
    """
    return {
        "name": op.name,
        "family": op.family,
        "doc": inspect.getdoc(op) or "",
        "summary": summary(op),
        "schema": op.name + str(op.schema).removeprefix(op.schema.name),  # one may be shared
        "slots": [_slot(slot) for slot in op.slots],
        "random": op.random,
        "type": {"site": str(op.site), "known_now": is_constant_folded(op)},
        "declare": {"site": None if op.declare_site is None else str(op.declare_site)},
        "gradient": _gradient(op),
        "cast_rule": _cast_rule(op),
        "kernels": _kernels(op, current(), available()),
        "absent_dialects": {d.name: d.unavailable for d in dialects() if d.unavailable is not None},
        "converters": {name: str(site) for name, site in sorted(op.aspects.converters.items())},
        "signatures": {
            phase: [list(pair) for pair in op.signature(phase)]
            for phase in ("init", "forward", "backward")
        },
    }


def is_constant_folded(op: Op) -> bool:
    """Whether the type function always returns a plain value, so that no kernel is needed.

    Such a function says so in its annotation: ``-> tuple[int, ...]`` and not ``-> Tensor``.
    """
    result = typing.get_type_hints(op.type_function).get("return")
    return result is not None and not _mentions_type(result)


def _mentions_type(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Type):
        return True
    return annotation is Any or any(map(_mentions_type, typing.get_args(annotation)))


def _slot(slot: Slot) -> dict[str, Any]:
    return {
        "name": slot.name,
        "kind": slot.kind,
        "accepts": slot.accepts,
        "access": slot.access,
        "role": slot.role,
        "optional": slot.optional,
        "required": not slot.has_default,
        "default": _json_value(slot.default) if slot.has_default else None,
    }


def _gradient(op: Op) -> dict[str, Any] | None:
    rule = op.aspects.gradient
    if rule is None:
        return None
    dy, types_only = op.schema.reserved("dy"), rule.types_only

    def keeps_alive(parameter: str) -> bool:  # attributes and dy are not kept
        i = op.schema.index.get(parameter)
        return parameter != dy and (i is None or op.slots[i].is_tensor)

    return {
        "site": str(rule.site),
        "differentiable": rule.function is not None,
        "reason": rule.reason,
        "keeps": [p for p in rule.parameters if p not in types_only and keeps_alive(p)],
        "types_only": sorted(types_only),
    }


def _cast_rule(op: Op) -> dict[str, Any]:
    rule = cast_rule_of(op)
    stated = op.aspects.cast_rule is not None
    return {
        "rule": None if rule is None else str(rule),
        "stated": stated,
        "site": str(rule.site) if stated and rule is not None else None,
    }


def _kernels(op: Op, preference: Preference, devices: list[Device]) -> list[dict[str, Any]]:
    for device in devices:  # load the dialects of all: what one has is passed over on another
        list(candidates(op, preference, device))
    verdicts = {str(device): _verdicts(op, preference, device) for device in devices}
    return [
        {
            "dialect": kernel.dialect.name,
            "scope": str(kernel.scope),
            "plevels": {kind: int(level) for kind, level in kernel.plevels.items()},
            "level": level_text(kernel.plevels),
            "site": str(kernel.site),
            "devices": list(kernel.dialect.devices),
            "fusion": kernel.fusion,
            "compiles": kernel.compiles_anew,
            "here": {d: v.get(kernel, f"not for {d}") for d, v in verdicts.items()},
        }
        for kernel in dict.fromkeys(k for d in devices for k in candidates(op, preference, d))
    ]


def _verdicts(op: Op, preference: Preference, device: Device) -> dict[DialectOp, str]:
    """Say of each kernel what would become of it in a call on ``device``."""
    before: list[str] = []
    verdicts = {}
    for kernel in candidates(op, preference, device):
        refusal = preference.refusal(kernel.dialect.name) or kernel.dialect.refusal(device)
        if refusal is not None:
            verdicts[kernel] = f"passed over: {refusal}"
        elif kernel.plevel(device) <= FUSED_ONLY:
            verdicts[kernel] = "only as part of a fused pattern"
        elif before:
            verdicts[kernel] = f"if declined by {', '.join(before)}"
            before.append(_name(kernel))
        else:
            verdicts[kernel] = "chosen"
            before.append(_name(kernel))
    return verdicts


def _name(kernel: DialectOp) -> str:
    """Return the dialect of a kernel, and for whose chips it is if not for all."""
    name = kernel.dialect.name
    return name if kernel.scope == GENERIC else f"{name} ({kernel.scope})"


def _json_value(value: Any) -> Any:
    """Return a default value in a form that JSON has: infinity is the text "inf"."""
    if isinstance(value, tuple):
        return [_json_value(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def by_family() -> dict[str, list[Op]]:
    """Return all operators, sorted, by family."""
    families: dict[str, list[Op]] = {}
    for name in sorted(OPERATORS):
        families.setdefault(OPERATORS[name].family, []).append(OPERATORS[name])
    return dict(sorted(families.items()))


MISSING = "MISSING"


def card_text(record: dict[str, Any]) -> str:
    """Return a card for a terminal."""
    lines = [record["schema"], "", *(f"  {line}".rstrip() for line in record["doc"].splitlines())]
    lines += section("slots", _slot_rows(record["slots"]))
    lines += section("aspects", _aspects(record))
    order = "in the order in which compiled programs ask; eager calls ask those that compile last"
    lines += section(f"kernels, {order}", _kernel_rows(record["kernels"]))
    if not record["kernels"]:
        none = "none needed: the value is known from the arguments' types"
        lines += ["", "kernels", f"  {none if record['type']['known_now'] else MISSING}"]
    lines += section("unavailable backends", list(record["absent_dialects"].items()))
    signatures = [
        [phase, ", ".join(f"{name} {access}" for name, access in pairs) or "nothing"]
        for phase, pairs in record["signatures"].items()
    ]
    lines += section("signatures", signatures)
    return "\n".join(lines)


def _slot_rows(slots: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            slot["name"],
            slot["accepts"],
            {"RO": "read", "RW": "read and written"}.get(slot["access"], slot["access"])
            + (", a weight" if slot["role"] == "weight" else ""),
            "required" if slot["required"] else f"default {slot['default']!r}",
        ]
        for slot in slots
    ]


def _aspects(record: dict[str, Any]) -> list[list[str]]:
    declare, rule = record["declare"]["site"], record["cast_rule"]
    if record["type"]["known_now"]:
        default = "default: the type function gives the value"
    else:
        default = "default: infer the type, allocate the result"
    return [
        ["family", "", record["family"] + (", random" if record["random"] else "")],
        ["type", _site_text(record["type"]["site"]), ""],
        ["declare", _site_text(declare), "" if declare else default],
        [
            "gradient",
            _site_text(record["gradient"] and record["gradient"]["site"]),
            gradient_text(record["gradient"]),
        ],
        ["cast rule", _site_text(rule["site"]), _cast_rule_text(rule)],
        *([f"from {name}", _site_text(site), ""] for name, site in record["converters"].items()),
        *([] if record["converters"] else [["converters", "", "none"]]),
    ]


def _cast_rule_text(rule: dict[str, Any]) -> str:
    if rule["rule"] is None:
        return MISSING
    return str(rule["rule"]) + ("" if rule["stated"] else ", default")


def gradient_text(rule: dict[str, Any] | None) -> str:
    """Return what a gradient keeps alive, or why there is none."""
    if rule is None:
        return MISSING
    if not rule["differentiable"]:
        return f"none: {rule['reason']}"
    keeps = f"keeps {', '.join(rule['keeps']) or 'nothing'}"
    return keeps + (f"; the type of {', '.join(rule['types_only'])}" if rule["types_only"] else "")


def _site_text(site: str | None) -> str:
    return "" if site is None else short_site(site)


def _kernel_rows(kernels: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            kernel["dialect"],
            kernel["level"],
            "fuses: " + kernel["fusion"] if kernel["fusion"] else "",
            "runs on " + ", ".join(kernel["devices"]),
            "compiles" if kernel["compiles"] else "",
            f"for the {kernel['scope']}" if kernel["scope"] != "generic" else "",
            "; ".join(f"{device}: {verdict}" for device, verdict in kernel["here"].items()),
            short_site(kernel["site"]),
        ]
        for kernel in kernels
    ]
