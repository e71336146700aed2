"""The floors of `docs/architecture.md`: a file imports only from its own folder or lower floors.
No files import one another in a circle.

The whole rule is the table below; a new folder is a new row. Every `import` statement of every file
under `meta/` is read from its syntax tree, those inside functions and under `TYPE_CHECKING`
included, and so is every `import_module("meta...")`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.imports import PACKAGE, imported_modules, imported_names, sources

FLOORS = [
    {"base"},
    {"ir", "runtime"},
    {"op"},
    {"grad", "amp", "dialect", "cost", "fft", "linalg"},
    {"passes", "analysis", "array_api", "random"},
    {"vm"},
    {"model", "optim", "train", "task", "distributed"},
    {"frontend", "language"},
    {"interop"},
]
# Costs are those of dialects' kernels. Optimizers, training loops and plans for ranks are written
# for models, analyses read what passes plan.
SAME_FLOOR = {
    ("cost", "dialect"),
    ("optim", "model"),
    ("distributed", "model"),
    ("train", "model"),
    ("train", "optim"),
    ("train", "distributed"),
    ("analysis", "passes"),
}
# The package itself, its command line and the public test helpers.
SEES_ALL = {"__init__", "__main__", "cli", "namespace", "testing"}

FLOOR = {folder: number for number, folders in enumerate(FLOORS) for folder in folders}


def allowed(importer: str, imported: str) -> bool:
    """Tell whether a file in ``meta/<importer>`` may import ``meta.<imported>``."""
    if importer in SEES_ALL or importer == imported or (importer, imported) in SAME_FLOOR:
        return True
    return imported in FLOOR and FLOOR[imported] < FLOOR[importer]


def part(name: str) -> str:
    """Return which folder or file right under `meta` a dotted name lies in.

    `meta` itself, and whatever `meta/__init__.py` exports, is the part ``__init__``.
    """
    first = name.split(".")[1] if "." in name else "__init__"
    path = PACKAGE / first
    return first if path.is_dir() or path.with_suffix(".py").exists() else "__init__"


def violations(source: str, path: Path) -> list[str]:
    """Return one line per forbidden import of the file at ``path`` (relative to the root)."""
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    importer = path.parts[1] if len(path.parts) > 2 else path.stem
    if importer not in FLOOR and importer not in SEES_ALL:
        return [f"{path}:1 lies in meta/{importer}, which has no row in the table of floors"]
    found = imported_names(ast.parse(source), module, path.stem == "__init__")
    return [
        f"{path}:{line} imports {name}: {importer} (floor {FLOOR[importer]})"
        f" -> {part(name)} (floor {FLOOR.get(part(name), 'top')})"
        for line, name in sorted(found)
        if not allowed(importer, part(name))
    ]


VM_FOLDERS = ("eager", "compiler", "graphs", "run", "inspect", "save")
"""Those of meta/vm from the lowest to the highest; its other files and folders see all of them."""


def test_folders_of_vm_import_from_those_below() -> None:
    found = []
    for number, folder in enumerate(VM_FOLDERS):
        allowed_here = VM_FOLDERS[: number + 1]
        for path in sorted((PACKAGE / "vm" / folder).rglob("*.py")):
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            tree = ast.parse(path.read_text("utf-8"))
            for line, name in imported_names(tree, module, path.stem == "__init__"):
                if name.startswith("meta.vm") and name.split(".")[2] not in allowed_here:
                    found.append(f"{path}:{line} imports {name}")
    assert not found, "imports that climb:\n" + "\n".join(found)


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next one, and the last the first; [] if none do."""
    done: set[str] = set()
    for root in imports:
        path = {root: iter(sorted(imports[root]))}
        while path:
            module, rest = next(reversed(path.items()))
            following = next((m for m in rest if m not in done), None)
            if following is None:
                done.add(module)
                del path[module]
            elif following in path:
                names = list(path)
                return names[names.index(following) :]
            else:
                path[following] = iter(sorted(imports[following]))
    return []


def test_no_files_import_one_another_in_a_circle() -> None:
    """Not inside of functions either, where such imports are put to hide a circle."""
    files = sources()
    imports = {name: imported_modules(text, name, files) for name, text in files.items()}
    assert sum(map(len, imports.values())) > 2000, "imports are no longer found"
    assert circle(imports) == []


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"a": "import meta.b", "b": "import meta.c", "c": ""}, []),
        ({"a": "import meta.b", "b": "from meta import c", "c": "import meta.b"}, ["b", "c"]),
        ({"a": "import meta.b", "b": "def f():\n    import meta.a"}, ["a", "b"]),
        ({"a": "import meta.b", "b": "if TYPE_CHECKING:\n    import meta.a"}, []),
        ({"a": "import meta.p.q", "p": "import meta.a", "p.q": ""}, ["a", "p"]),
        ({"p": "import meta.p.q", "p.q": ""}, []),
        ({"p": "import meta.p.q", "p.q": "from meta.p import x"}, ["p", "p.q"]),
    ],
)
def test_circles_are_found(sources: dict[str, str], expected: list[str]) -> None:
    files = {f"meta.{name}": text for name, text in sources.items()}
    imports = {name: imported_modules(text, name, files) for name, text in files.items()}
    assert circle(imports) == [f"meta.{name}" for name in expected]


def test_every_import_goes_down() -> None:
    found = [
        problem
        for path in sorted(PACKAGE.rglob("*.py"))
        for problem in violations(path.read_text("utf-8"), path.relative_to(PACKAGE.parent))
    ]
    assert not found, "imports that run upward or sideways:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "ok"),
    [
        ("meta/ir/expr.py", "from meta.base.errors import IRError", True),
        ("meta/ir/expr.py", "import meta.ir.types", True),
        ("meta/ir/expr.py", "from meta.runtime import ndarray", False),
        ("meta/base/errors.py", "def f():\n    from meta.ir import Var", False),
        ("meta/base/errors.py", "import meta", False),
        ("meta/base/errors.py", "from meta import ndarray", False),
        ("meta/grad/loss.py", "from meta import op", True),
        ("meta/grad/loss.py", "from ..dialect import core", False),
        ("meta/op/__init__.py", "from . import core", True),
        ("meta/op/__init__.py", "from .. import vm", False),
        ("meta/dialect/tvm/__init__.py", "import_module('meta.vm.compilation')", False),
        ("meta/optim/algorithms.py", "import meta.model.trace", True),
        ("meta/model/model.py", "import meta.optim", False),
        ("meta/testing/cases.py", "import meta", True),
        ("meta/__main__.py", "import meta.frontend.relay", True),
        ("meta/helpers.py", "", False),
    ],
)
def test_the_rule(path: str, source: str, ok: bool) -> None:
    assert (violations(source, Path(path)) == []) is ok
