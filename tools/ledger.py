"""What the tree costs its readers: lines, files, context variables, circles of imports, lists of
operators that are kept by hand and vague names, by folder, beside the budgets of tools/ledger.json.

    python -m tools.ledger [--json]

exits with 1 if a budget is exceeded. A change that needs more room raises a budget where reviewers
see it; one that leaves room lowers it.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import networkx

from tools.imports import imported_modules, sources

ROOT = Path(__file__).parents[1]
BUDGETS = Path(__file__).with_suffix(".json")
FOLDERS = ("meta", "tests", "tools", "benchmarks", "examples")
SUFFIXES = {".py", ".cu", ".cuh", ".c", ".h"}
LEAST, MOST_OTHERS = 8, 0.2
"""How many names make a list, and which part of them may be no operator's."""
VAGUE = re.compile(
    "_(made|kept|keep|told|heard|said|given|meant|seen|stated|taken|asked|found|left|gone|done|put|"
    "held|wanted|whole|each|beside|ahead|lone|places?|parts?|one)(?=_)"
)
"""Words that say nothing of what a module or a definition is."""
TERMS = re.compile("in_place|one_hot|one_cycle|left_shift|put_along_axis|index_put|real_part")
"""Terms of the field in which such words stand."""


def sizes(root: Path) -> dict[str, dict[str, int]]:
    """Return lines and files of the folders of a tree, and of those of `meta` by name."""
    found: dict[str, dict[str, int]] = {}
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.suffix not in SUFFIXES:
                continue
            lines = path.read_text("utf-8").count("\n")
            parts = path.relative_to(root).parts
            rows = [folder, "/".join(parts[:2])] if folder == "meta" and parts[2:] else [folder]
            for row in rows:
                size = found.setdefault(row, {"lines": 0, "files": 0})
                size["lines"] += lines
                size["files"] += 1
    return found


def context_variables(files: Mapping[str, str]) -> list[str]:
    """Return module and name of every context variable: of what decides unseen what a call does."""
    return [
        f"{module}.{target.id}"
        for module, text in files.items()
        if "ContextVar" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func).split(".")[-1] == "ContextVar"
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]


def widest_circle(files: Mapping[str, str]) -> list[str]:
    """Return the largest set of modules that all import one another, types included."""
    graph = networkx.DiGraph()
    for module, text in files.items():
        imported = imported_modules(text, module, files, types=True)
        graph.add_edges_from((module, other) for other in imported)
    circles = networkx.strongly_connected_components(graph)
    return max((sorted(c) for c in circles), key=len, default=[])


def operator_lists(files: Mapping[str, str], operators: set[str]) -> list[str]:
    """Return module and line of every literal that names many operators, and little else, but for
    the tables of the families, from which operators are made.
    """
    found = []
    others = {m: text for m, text in files.items() if not m.startswith("meta.op.")}
    for module, text in others.items():
        for line, names in _names(ast.parse(text)):
            known = names & operators
            if len(known) >= LEAST and len(known) >= (1 - MOST_OTHERS) * len(names):
                found.append(f"{module}:{line}")
    return found


def vague_names(files: Mapping[str, str], public: set[str]) -> list[str]:
    """Return the modules and the definitions of modules that have a vague word in their names, but
    for what users call.
    """
    found = []
    for module, text in files.items():
        if _is_vague(module.rpartition(".")[2]):
            found.append(module)
        for node in ast.parse(text).body:
            names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [t.id for t in targets if isinstance(t, ast.Name)]
            found += [f"{module}.{n}" for n in names if _is_vague(n) and n not in public]
    return found


def _is_vague(name: str) -> bool:
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    return VAGUE.search(f"_{TERMS.sub('', words)}_") is not None


def _names(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """Iterate over literals with the strings in them: elements, keys, or words of one string."""
    for node in ast.walk(tree):
        elements: list[Any] = []
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            elements = node.elts
        elif isinstance(node, ast.Dict):
            elements = node.keys
        if elements:
            strings = [e.value for e in elements if isinstance(e, ast.Constant)]
            # A table from operators to rules or kernels is where these are stated.
            table = isinstance(node, ast.Dict)
            parts = [e for e in elements if isinstance(e, ast.Attribute) and not table]
            members = {e.attr for e in parts if ast.unparse(e.value) == "op"}
            yield node.lineno, members.union(s for s in strings if isinstance(s, str))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()
            if all(word.isidentifier() for word in words):
                yield node.lineno, set(words)


def ledger() -> dict[str, dict[str, Any]]:
    """Return all figures: by row, by kind, a number; behind "where" what is counted."""
    from meta.base.registry import FUNCTIONS, OPERATORS

    files = sources()
    operators = set(OPERATORS)
    rows: dict[str, dict[str, Any]] = dict(sorted(sizes(ROOT).items()))
    for kind, where in {
        "context variables": context_variables(files),
        "widest circle": widest_circle(files),
        "operator lists": operator_lists(files, operators),
        "vague names": vague_names(files, operators | set(FUNCTIONS)),
    }.items():
        rows[kind] = {"count": len(where), "where": where}
    return rows


def over(rows: Mapping[str, Mapping[str, Any]], budgets: Mapping[str, Any]) -> list[str]:
    """Return a line for each figure above its budget, and for each budget of nothing."""
    found = [f"{row}: the ledger has no such row" for row in budgets if row not in rows]
    for row, limits in budgets.items():
        for kind, limit in limits.items():
            if row in rows and rows[row][kind] > limit:
                found.append(f"{row}: {rows[row][kind]:,} {kind}, at most {limit:,}")
    return found


def table(rows: Mapping[str, Mapping[str, Any]], budgets: Mapping[str, Any]) -> str:
    """Return the figures as text, each with its budget."""

    def cell(row: str, kind: str) -> str:
        if kind not in rows[row]:
            return ""
        limit = budgets.get(row, {}).get(kind)
        return f"{rows[row][kind]:,}" + ("" if limit is None else f" of {limit:,}")

    kinds = ("lines", "files", "count")
    lines = [("", *kinds), *((row, *(cell(row, kind) for kind in kinds)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(w) if i else text.ljust(w) for i, (text, w) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the ledger; return 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tools.ledger", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args(arguments)
    budgets = json.loads(BUDGETS.read_text("utf-8"))
    rows = ledger()
    wrong = over(rows, budgets)
    if options.json:
        print(json.dumps({"rows": rows, "over": wrong}, indent=1))
    else:
        print(table(rows, budgets))
        print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    gc.disable()  # of millions of nodes of syntax trees, none is in a cycle
    sys.exit(main())
