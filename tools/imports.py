"""Which files of `meta` import which, from their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "meta"


def sources() -> dict[str, str]:
    """Return the text of every file of the package, by the dotted name of its module."""
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path.read_text("utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def imported_names(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the absolute dotted name of whatever of `meta` a file imports."""
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                origin = [node.module] if node.module else []
                if node.level:
                    up = node.level - is_package
                    origin = module.split(".")[: -up or None] + origin
                names = [".".join([*origin, alias.name]) for alias in node.names]
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names = [name]
        yield from ((node.lineno, n) for n in names if n == "meta" or n.startswith("meta."))


def imported_modules(
    source: str, module: str, modules: Container[str], types: bool = False
) -> set[str]:
    """Return which of ``modules`` a file imports when it is run or later, packages on the way there
    included; what it imports for its types only (``if TYPE_CHECKING``) if ``types``.
    """
    tree = ast.parse(source)
    for node in () if types else ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    found: set[str] = set()
    for _, name in imported_names(tree, module, module in modules):
        parts = name.split(".")
        way = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
        # The packages that a file lies in are imported before it.
        outside = [m for m in way if not f"{module}.".startswith(f"{m}.")]
        written = [m for m in way if m in modules][-1:]
        found.update(m for m in (*outside, *written) if m in modules)
    return found - {module}
