"""Source text as its parts: kernels, with what they take, and functions of the host."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from meta.dialect.template.host_values import HostError
from meta.runtime.nvrtc import PROLOGUE

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(
    r"(?P<template>template\s*<[^;{}]*>\s*)?(?P<c>extern\s+\"C\"\s+)?(?P<static>static\s+)?"
    r"__global__\s+(?:static\s+)?(?:__launch_bounds__\s*\((?P<before>[^)]*)\)\s*)?"
    r"void\s+(?:__launch_bounds__\s*\((?P<bounds>[^)]*)\)\s*)?(?P<name>\w+)\s*\("
)
_STANDARD = re.compile(
    r"(?m)^[ \t]*#\s*include\s*<(?:cstdint|stdint\.h|cuda_runtime\.h|hip/hip_runtime\.h)>[ \t]*$"
)
_UNNAMED = re.compile(r"\bnamespace\s*\{")
C_LINKAGE = 'extern "C" '


@dataclass(frozen=True)
class Kernel:
    """A kernel of device code: its parameters, types and names, and the threads that it says it is
    launched with at most (None: it says nothing). is_nested: whether it is in a namespace.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    threads: int | None
    is_template: bool
    is_nested: bool


@dataclass(frozen=True)
class HostFunction:
    """A function of the host: its parameters, its body, and the line on which that begins."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    body: str
    line: int


def blanked(text: str) -> str:
    """Return text with comments as spaces, so that places in it stay."""
    return _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def _end(text: str, start: int) -> int:
    """Return where the bracket that opens at ``start`` is closed, behind it; -1 if it is not."""
    opening = text[start]
    closing, depth = {"(": ")", "{": "}"}[opening], 0
    for at in range(start, len(text)):
        if text[at] == opening:
            depth += 1
        elif text[at] == closing:
            depth -= 1
            if not depth:
                return at + 1
    return -1


def _is_nested(text: str, place: int) -> bool:
    """Whether a place is between braces other than those of ``extern "C"``."""
    open_: list[bool] = []
    for at in range(place):
        if text[at] == "{":
            before = text[max(0, at - 40) : at].rstrip()
            open_.append(not before.endswith('extern "C"'))
        elif text[at] == "}" and open_:
            open_.pop()
    return any(open_)


def parameters_of(text: str) -> tuple[tuple[str, str], ...]:
    """Return types and names of parameters as they are written in a definition."""
    parts, depth, last = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "(<[") - (letter in ")>]")
        if letter == "," and not depth:
            parts.append(text[last:at])
            last = at + 1
    found = []
    for part in (p.strip() for p in [*parts, text[last:]]):
        name = re.search(r"(\w+)\s*$", part)
        if part and part != "void" and name is not None:
            found.append((" ".join(part[: name.start()].split()), name[1]))
    return tuple(found)


@lru_cache(maxsize=256)
def kernels_of(text: str) -> dict[str, Kernel]:
    """Return the kernels that a text defines, by name."""
    plain, found = blanked(text), {}
    for match in _KERNEL.finditer(plain):
        end = _end(plain, match.end() - 1)
        if end < 0 or not plain[end:].lstrip().startswith("{"):
            continue  # a declaration
        bound = (match["bounds"] or match["before"] or "").split(",")[0].strip()
        found[match["name"]] = Kernel(
            match["name"],
            parameters_of(plain[match.end() : end - 1]),
            int(bound) if bound.isdecimal() else None,
            match["template"] is not None,
            _is_nested(plain, match.start()),
        )
    return found


def host_function(text: str, name: str) -> tuple[HostFunction, tuple[int, int]] | None:
    """Return the function of the host that a text defines under a name, and where it is in the
    text; None if there is none.
    """
    plain = blanked(text)
    for match in re.finditer(rf"\bvoid\s+{re.escape(name)}\s*\(", plain):
        before = plain[: match.start()].rsplit("\n", 1)[-1]
        behind = _end(plain, match.end() - 1)
        brace = plain.find("{", behind)
        if behind < 0 or brace < 0 or plain[behind:brace].strip() or "__" in before:
            continue
        end = _end(plain, brace)
        if end < 0:
            raise HostError(f"the braces of the function {name!r} are not closed")
        body = plain[brace + 1 : end - 1]
        line = plain.count("\n", 0, brace) + 1
        start = match.start() - (len(before) - len(before.lstrip()) if not before.strip() else 0)
        parameters = parameters_of(plain[match.end() : behind - 1])
        return HostFunction(name, parameters, body, line), (start, end)
    return None


def without_unnamed(text: str) -> str:
    """Return text without unnamed namespaces around its code, whose kernels no launch would find;
    the text is a translation unit of its own.
    """
    while (found := _UNNAMED.search(blanked(text))) is not None:
        end = _end(blanked(text), found.end() - 1)
        if end < 0:
            raise HostError("the braces of a namespace are not closed")
        whole = re.sub(r"[^\n]", " ", found[0])
        text = text[: found.start()] + whole + text[found.end() : end - 1] + " " + text[end:]
    return text


def without(text: str, places: list[tuple[int, int]]) -> str:
    """Return text without some parts, whose lines stay as empty ones."""
    for start, end in sorted(places, reverse=True):
        text = text[:start] + "\n" * text.count("\n", start, end) + text[end:]
    return text


def for_device(text: str) -> str:
    """Return device code as NVRTC takes it: without standard headers, with kernels that are found
    by their names.
    """
    plain = blanked(text)
    for match in reversed(list(_KERNEL.finditer(plain))):
        if match["c"] is None and match["template"] is None:
            kernel = match[0].removeprefix(match["static"] or "").replace(" static ", " ")
            text = text[: match.start()] + C_LINKAGE + kernel + text[match.end() :]
    return PROLOGUE + _STANDARD.sub("", text)
