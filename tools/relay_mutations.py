"""Mutations of Relay files for `fuzz_relay.py`: of bytes, of text, of JSON graphs, of params.

A mutation is a function of a random generator and the content; a new one goes into the list of what
it fits. Each decides by the generator alone, so that a case can be made again.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from typing import Any

from meta.frontend.relay.params import MAGIC

Mutation = Callable[[random.Random, bytes], bytes]

_HUGE = (0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**30)
_NUMBER = re.compile(rb"-?\d+")
_SNIPPETS = (
    *('"', "'", "\\", "\0", "\r", "/*", "*/", "//", "#[metadata]", "meta[relay.Constant][9]"),
    *("True", "nanf", "-inff", "1e999f", "%", "@", "%0", "%x.0.0.0", "let %x = %x;", "()", ";;"),
    *("fn (", "match (", "ref(", "_", "->", "=>", "Tensor[(", "?", "i64", "NaN", "Infinity"),
    *('"root": 0', "\\ud800", '{"a":1,"a":2}', "null", "[]", "{}", "1e400", "-0", "\ufeff", "🙂"),
    *("\u202e", "\u0000", "é", "ſ", "²", "٣"),
)
_OPENERS = (
    "(",
    "[",
    "{",
    '{"a":',
    "fn () { ",
    "if (True) { ",
    "/*",
    "((",
    "ref(",
    "let %x = (",
    "-",
)


def _bounds(rng: random.Random, data: bytes) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    return begin, min(len(data), begin + int(rng.expovariate(1 / 40)))


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def delete(rng: random.Random, data: bytes) -> bytes:
    begin, end = _bounds(rng, data)
    return data[:begin] + data[end:]


def duplicate(rng: random.Random, data: bytes) -> bytes:
    begin, end = _bounds(rng, data)
    return data[:end] + data[begin:end] * rng.choice((1, 2, 50)) + data[end:]


def insert_bytes(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 2, 4, 16))) + data[at:]


def insert_snippet(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_SNIPPETS).encode(errors="surrogatepass") + data[at:]


def huge_number(rng: random.Random, data: bytes) -> bytes:
    places = list(_NUMBER.finditer(data))
    if not places:
        return insert_bytes(rng, data)
    place = rng.choice(places)
    number = str(rng.choice(_HUGE)) if rng.random() < 0.9 else "9" * rng.choice((400, 5000))
    return data[: place.start()] + number.encode() + data[place.end() :]


def depth_bomb(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    bomb = rng.choice(_OPENERS) * rng.choice((10, 150, 300, 2_000, 50_000))
    return data[:at] + bomb.encode() + data[at:]


def lines(rng: random.Random, data: bytes) -> bytes:
    parts = data.splitlines(keepends=True)
    if len(parts) < 2:
        return delete(rng, data)
    a, b = rng.randrange(len(parts)), rng.randrange(len(parts))
    if rng.random() < 0.5:
        parts[a], parts[b] = parts[b], parts[a]
    else:
        parts.insert(a, parts[b])
    return b"".join(parts)


def words(rng: random.Random, data: bytes) -> bytes:
    """Put one word of the text in the place of another."""
    places = list(re.finditer(rb"[%@]?[\w.]+|[^\s\w]", data))
    if len(places) < 2:
        return delete(rng, data)
    a, b = rng.choice(places), rng.choice(places)
    return data[: a.start()] + b[0] + data[a.end() :]


def _edit_node(rng: random.Random, graph: dict[str, Any]) -> None:
    nodes = graph["nodes"]
    node = nodes[rng.randrange(len(nodes))]
    attrs = node.get("attrs", {})
    choice = rng.randrange(8)
    if choice == 0 and attrs:
        name = rng.choice(sorted(attrs))
        attrs[name] = str(
            rng.choice((rng.randrange(len(nodes) + 2), *_HUGE, "", "x", "nan", "1e9"))
        )
    elif choice == 1 and attrs:
        del attrs[rng.choice(sorted(attrs))]
    elif choice == 2 and attrs:
        attrs[rng.choice(("strange", "body", "value"))] = attrs.pop(rng.choice(sorted(attrs)))
    elif choice == 3 and node.get("data"):
        data = node["data"]
        data[rng.randrange(len(data))] = rng.choice(
            (rng.randrange(len(nodes) + 2), -1, 10**12, "1")
        )
    elif choice == 4:
        node["type_key"] = rng.choice((rng.choice(nodes)["type_key"], "", "relax.Call", "x.Y"))
    elif choice == 5:
        nodes[rng.randrange(len(nodes))] = json.loads(json.dumps(node))
    elif choice == 6:
        a, b = rng.randrange(len(nodes)), rng.randrange(len(nodes))
        nodes[a], nodes[b] = nodes[b], nodes[a]
    else:
        name = rng.choice(("data", "keys", "repr_str", "repr_b64", "attrs"))
        node[name] = rng.choice(([0] * 5, ["a", "a"], "AAAA", "", 3, None, {"a": "0"}, [[1]]))


def edit_graph(rng: random.Random, data: bytes) -> bytes:
    """Edit a JSON graph and write it again, so that its outer form is right."""
    try:
        graph = json.loads(data)
        nodes = graph["nodes"]
        if not nodes or not all(isinstance(n, dict) and "type_key" in n for n in nodes):
            return flip_bits(rng, data)
        choice = rng.randrange(12)
        if choice == 0:
            graph["root"] = rng.choice((0, -1, len(nodes), rng.randrange(len(nodes)), "1", 10**20))
        elif choice == 1 and graph.get("b64ndarrays"):
            arrays = graph["b64ndarrays"]
            at = rng.randrange(len(arrays))
            arrays[at] = rng.choice(("", "!", "AAAA", arrays[at][:-8], arrays[at] * 2))
        elif choice == 2:
            graph["attrs"] = {"tvm_version": rng.choice(("0.6.0", "99999.1", "x", "", "0.8.dev1"))}
        else:
            for _ in range(rng.choice((1, 2, 5))):
                _edit_node(rng, graph)
        return json.dumps(graph).encode(errors="surrogatepass")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return flip_bits(rng, data)  # another mutation broke it before


def edit_length(rng: random.Random, data: bytes) -> bytes:
    """Put a length or another number that ends things into a parameter file."""
    width, code = rng.choice(((8, "<Q"), (4, "<I"), (2, "<H"), (1, "<B")))
    if len(data) < width:
        return insert_bytes(rng, data)
    at = rng.randrange(len(data) - width + 1)
    number = struct.pack(code, rng.choice(_HUGE) % 256**width)
    return data[:at] + number + data[at + width :]


BYTES: list[Mutation] = [flip_bits, truncate, delete, duplicate, insert_bytes, insert_snippet]
TEXT: list[Mutation] = [huge_number, depth_bomb, lines, words, words]
GRAPH: list[Mutation] = [huge_number, depth_bomb, edit_graph, edit_graph, edit_graph, edit_graph]
PARAMS: list[Mutation] = [edit_length, edit_length, edit_length]


def splice(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Return the beginning of a file with the end of another."""
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def mutate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Return the content after one mutation that fits its kind."""
    if rng.random() < 0.05:
        return splice(rng, data, others)
    special = PARAMS if data.startswith(MAGIC) else GRAPH if data.startswith(b"{") else TEXT
    return rng.choice(rng.choice((BYTES, special, special)))(rng, data)
