"""The card of `meta.cli.card` as text."""

from __future__ import annotations

from typing import Any

from meta.base.source import short_site
from meta.cli.table import section

MISSING = "MISSING"


def text(record: dict[str, Any]) -> str:
    """Return a card for a terminal."""
    lines = [record["schema"], "", *(f"  {line}".rstrip() for line in record["doc"].splitlines())]
    lines += section("slots", _slots(record["slots"]))
    lines += section("aspects", _aspects(record))
    order = "in the order in which compiled programs ask; eager calls ask those that compile last"
    lines += section(f"kernels, {order}", _kernels(record["kernels"]))
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


def _slots(slots: list[dict[str, Any]]) -> list[list[str]]:
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
            gradient(record["gradient"]),
        ],
        ["cast rule", _site_text(rule["site"]), _cast_rule(rule)],
        *([f"from {name}", _site_text(site), ""] for name, site in record["converters"].items()),
        *([] if record["converters"] else [["converters", "", "none"]]),
    ]


def _cast_rule(rule: dict[str, Any]) -> str:
    if rule["rule"] is None:
        return MISSING
    return str(rule["rule"]) + ("" if rule["stated"] else ", default")


def gradient(rule: dict[str, Any] | None) -> str:
    """Return what a gradient keeps alive, or why there is none."""
    if rule is None:
        return MISSING
    if not rule["differentiable"]:
        return f"none: {rule['reason']}"
    keeps = f"keeps {', '.join(rule['keeps']) or 'nothing'}"
    return keeps + (f"; the type of {', '.join(rule['types_only'])}" if rule["types_only"] else "")


def _site_text(site: str | None) -> str:
    return "" if site is None else short_site(site)


def _kernels(kernels: list[dict[str, Any]]) -> list[list[str]]:
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
