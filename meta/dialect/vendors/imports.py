"""How the files of a vendor's folder are imported.

What a file needs and this machine lacks (a toolchain, a name of FlagGems that `meta` does not have)
makes the names that the file defines unavailable, with that reason, and nothing else. An
``__init__.py`` therefore runs statement by statement: after one that fails so, its names are
unavailable in the package, and using one fails the same way. Any other file is imported as Python
does, and fails as a unit.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from meta.base.errors import MetaError
from meta.base.source import Span
from meta.dialect.core.backend_errors import summary

packages: dict[str, Path] = {}
"""The packages of vendors, and where they are."""
UNAVAILABLE = "__unavailable__"
"""Of a package of a vendor: by name, why it does not have it."""


def raised_in(error: BaseException, folder: Path) -> Span | None:
    """Return the innermost line of a folder at which an error passed through."""
    found, trace = None, error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if Path(file).is_relative_to(folder):
            found = Span(file, trace.tb_lineno)
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_relative_to(folder):
        return Span(str(error.filename), error.lineno or 1)
    return found


class UnavailableName(MetaError, ImportError):
    """A name that a vendor's file needs and that is not here. ``toolchain``: the module, or what of
    Triton, that another installation has; empty where it is a name of FlagGems.
    """

    toolchain = ""


def reason_of_failure(error: BaseException) -> UnavailableName:
    """Return why what a failing import would define is unavailable, and the line of a vendor's file
    where it fails.
    """
    if isinstance(error, UnavailableName):
        return error
    absent = _absent(error)
    if isinstance(error, MetaError):
        found = UnavailableName(error.what, hint=error.hint, span=error.span)
    else:
        what = f"needs {absent}, which is not here" if absent else ""
        found = UnavailableName(what or summary(error))
    found.toolchain = absent
    if not isinstance(error, MetaError):
        lines = (raised_in(error, folder) for folder in packages.values())
        found.span = next(filter(None, lines), None)
    return found


def _absent(error: BaseException) -> str:
    """Return what of a toolchain an error misses; "" for another error."""
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    if isinstance(error, ImportError) and str(error.name).startswith(("triton", "torch")):
        return f"more of {error.name} ({summary(error)})"
    owner = getattr(getattr(error, "obj", None), "__name__", "")
    if isinstance(error, AttributeError) and owner.partition(".")[0] in ("torch", "triton"):
        return f"{owner}.{error.name}"
    if isinstance(error, TypeError) and re.match(r"(autotune|Config.__init__)\(\) got", str(error)):
        return f"another Triton ({error})"
    if isinstance(error, RuntimeError) and "active driver" in str(error):
        return f"a driver of Triton ({error})"
    return ""


def is_absence(error: BaseException) -> bool:
    """Whether an error says that something is not on this machine, and not that a file is wrong."""
    return isinstance(error, UnavailableName) or bool(reason_of_failure(error).toolchain)


class FolderLoader(SourceFileLoader):
    """The loader of a file of a vendor's folder."""

    def exec_module(self, module: ModuleType) -> None:
        file = Path(str(module.__file__))
        if file.name != "__init__.py":
            super().exec_module(module)
            return
        missing: dict[str, UnavailableName] = {}

        def get(name: str) -> Any:
            if name in missing:
                raise missing[name]
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        space = vars(module)
        space[UNAVAILABLE], space["__getattr__"] = missing, get
        for statement, code in _statements(self.get_data(str(file)), str(file)):
            try:
                if not _star(statement, module, missing):
                    exec(code, space)
            except Exception as error:
                cause = _cause(error, missing, statement)
                if cause is None:
                    raise
                if cause.span is None:
                    cause.span = Span(str(file), statement.lineno)
                for name in _bound(statement):
                    if name not in space:
                        missing[name] = cause


def _statements(source: bytes, file: str) -> Iterator[tuple[ast.stmt, CodeType]]:
    tree = ast.parse(source, file)
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
        yield node, compile(ast.Module([node], []), file, "exec", flags, dont_inherit=True)


def _cause(
    error: Exception, missing: dict[str, UnavailableName], statement: ast.stmt
) -> UnavailableName | None:
    """Return why the names of a statement are unavailable, None for an error of the file."""
    if isinstance(error, NameError) and error.name in missing:
        return missing[error.name]
    own = any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(statement))
    return reason_of_failure(error) if own or is_absence(error) else None


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement may define."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def _star(statement: ast.stmt, module: ModuleType, missing: dict[str, UnavailableName]) -> bool:
    """Run ``from .x import *``, also of what is unavailable in x; return whether it is that."""
    if not isinstance(statement, ast.ImportFrom) or statement.level == 0:
        return False
    if [alias.name for alias in statement.names] != ["*"]:
        return False
    name = "." * statement.level + (statement.module or "")
    source = importlib.import_module(name, module.__package__)
    lost: dict[str, UnavailableName] = vars(source).get(UNAVAILABLE, {})
    for listed in public_names(source):
        if listed in lost:
            missing[listed] = lost[listed]
        elif hasattr(source, listed):
            setattr(module, listed, getattr(source, listed))
    return True


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a star import takes; ``"*"`` in ``__all__`` is all public ones."""
    listed = list(getattr(module, "__all__", ["*"]))
    if "*" not in listed:
        return listed
    own = [n for n in (*vars(module), *vars(module).get(UNAVAILABLE, ())) if not n.startswith("_")]
    return list(dict.fromkeys([*(n for n in listed if n != "*"), *own]))


class FolderFinder(MetaPathFinder):
    """Finds the modules of vendors' packages, and the modules of FlagGems' idiom.

    idiom: returns the module of a name of FlagGems' idiom, None for another. alias: returns the
    real name of a module that goes by a name of FlagGems', None for another.
    """

    def __init__(
        self, idiom: Callable[[str], ModuleType | None], alias: Callable[[str], str | None]
    ) -> None:
        self.idiom, self.alias = idiom, alias

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        real = self.alias(name)
        if real is not None:
            return ModuleSpec(name, _Existing(lambda: importlib.import_module(real)))
        module = self.idiom(name)
        if module is not None:
            return ModuleSpec(name, _Existing(lambda: module), is_package=True)
        if not any(name == own or name.startswith(f"{own}.") for own in packages):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = FolderLoader(name, str(spec.origin))
        return spec


class _Existing(Loader):
    """A loader whose module is there."""

    def __init__(self, get: Callable[[], ModuleType]) -> None:
        self.get = get

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = self.get()
