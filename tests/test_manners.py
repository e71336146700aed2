"""Rules that hold in every file: one reader of the environment, no unsafe loader, no loose ends."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "meta"
FOLDERS = ("meta", "tests", "examples", "benchmarks", "tools")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

THE_READER_OF_THE_ENVIRONMENT = "meta/base/config.py"

# What runs code found in data. `model.eval()` is an attribute, not the builtin.
UNSAFE_MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
UNSAFE_BUILTINS = {"__import__", "eval", "exec"}
# "file: name" of a use that touches no file and no text of a stranger -> why it is safe.
SAFE_USES: dict[str, str] = {
    "meta/dialect/core/launch.py: exec": "the text of a launch, of places of arguments",
    "meta/dialect/triton/pointwise.py: exec": "the text of a kernel, of dimensions alone",
    "meta/dialect/vendors/imports.py: exec": "an __init__.py of a vendor, as its import does",
    "meta/vm/run/python_codegen.py: exec": "the text of a function, of numbers of registers alone",
}


def name(path: Path) -> str:
    """Return the path as it is written in the rules: from the root, with slashes."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text("utf-8"), str(path))


def package_nodes() -> Iterator[tuple[Path, ast.AST]]:
    """Yield every syntax node of the package with its file."""
    for path in SOURCES:
        if path.is_relative_to(PACKAGE):
            for node in ast.walk(tree(path)):
                yield path, node


def imports(node: ast.AST) -> list[str]:
    """Return what an import statement imports, as dotted names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def name_of(node: ast.AST) -> str:
    """Return what is written as a name with dots, of two parts; "" for all else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


def unsafe(node: ast.AST) -> str | None:
    """Return the name of the unsafe thing that a node uses, if it does."""
    for imported in imports(node):
        if imported.partition(".")[0] in UNSAFE_MODULES:
            return imported.partition(".")[0]
    if isinstance(node, ast.Name) and node.id in UNSAFE_BUILTINS and isinstance(node.ctx, ast.Load):
        return node.id
    if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
        safe = node.arg == "weights_only"
        if not (isinstance(node.value, ast.Constant) and node.value.value is safe):
            return node.arg
    if isinstance(node, ast.Call) and name_of(node.func) == "torch.load":
        keywords = {keyword.arg for keyword in node.keywords}
        return None if "weights_only" in keywords else "torch.load"
    return None


def test_only_config_reads_the_environment() -> None:
    readers = {"os.environ", "os.environb", "os.getenv", "os.putenv"}
    found = [
        f"{name(path)}:{node.lineno}"
        for path, node in package_nodes()
        if name(path) != THE_READER_OF_THE_ENVIRONMENT
        and (
            (isinstance(node, ast.Attribute) and name_of(node) in readers)
            or (isinstance(node, ast.ImportFrom) and readers.intersection(imports(node)))
        )
    ]
    assert not found, f"read a knob of {THE_READER_OF_THE_ENVIRONMENT} instead: {found}"


def test_nothing_runs_code_found_in_data() -> None:
    found = {
        f"{name(path)}: {used}": node.lineno if hasattr(node, "lineno") else 0
        for path, node in package_nodes()
        if (used := unsafe(node))
    }
    assert not found.keys() - SAFE_USES.keys(), f"unsafe, with the line: {found}"
    assert not SAFE_USES.keys() - found.keys(), "an exception that nothing needs any more"


def test_no_file_is_called_utils() -> None:
    vague = [name(path) for path in SOURCES if path.stem in ("util", "utils", "helpers", "misc")]
    assert not vague, f"name the one idea of the file: {vague}"


def test_nothing_is_left_for_later() -> None:
    mark = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
    found = []
    for path in SOURCES:
        text = path.read_text("utf-8")
        if not mark.search(text):
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) and mark.search(token.string):
                found.append(f"{name(path)}:{token.start[0]}")
    assert not found, f"do it, or say in the docs that it is missing: {found}"


def test_every_module_says_what_it_is_for() -> None:
    # The empty package files of the tests are no place to look for an explanation.
    silent = [name(p) for p in SOURCES if tree(p).body and not ast.get_docstring(tree(p))]
    silent += [name(p) for p in SOURCES if p.is_relative_to(PACKAGE) and not tree(p).body]
    assert not silent, f"no module docstring: {silent}"


def test_no_line_is_wider_than_100_columns() -> None:
    wide = [
        f"{name(path)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    assert not wide, f"over 100 columns: {wide}"
