"""The folder of a vendor as a Python package, and what it says of the vendor."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from meta.base.errors import FormatError, MetaError
from meta.base.source import Span
from meta.dialect.core.failure import summary
from meta.dialect.vendors.idioms import spoken
from meta.dialect.vendors.vendor import Vendor

# The words of FlagGems' folders, and the attributes of a `Vendor` that they are.
_BESIDE = {"ARCH_MAP": "architectures", "CUSTOMIZED_UNUSED_OPS": "unused"}


def import_folder(folder: Path) -> ModuleType:
    """Import a folder that is on no path, as a package.

    It is called as the folder, so that its files may import one another by that name, unless there
    is another module of the name. Raises FormatError if the folder has no ``__init__.py``, or one
    that raises or exits; then it is not imported.
    """
    file = folder / "__init__.py"
    if not file.is_file():
        raise FormatError(
            f"{folder} is not the folder of a vendor",
            expected="an __init__.py that says vendor = Vendor(...) or vendor_info = ...",
            hint="docs/guides/vendor.md shows the layout",
        )
    name = folder.name
    if not name.isidentifier() or name in sys.modules or _is_importable(name):
        name = f"_vendor_{sha256(str(folder).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    try:
        with spoken():
            spec.loader.exec_module(package)
    except MetaError:
        drop(name)
        raise
    except (Exception, SystemExit) as error:
        drop(name)
        raise FormatError(
            f"the __init__.py of a vendor's folder cannot be imported: {summary(error)}",
            found=str(folder),
            span=raised_in(error, folder) or Span(str(file), 1),
        ) from error
    except BaseException:
        drop(name)
        raise
    return package


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


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def drop(name: str) -> None:
    """Forget an imported package and its modules."""
    for one in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[one]


def vendor_in(package: ModuleType) -> Vendor:
    """Return the vendor that a package describes, as ``vendor`` or ``vendor_info``; FormatError if
    it describes none.
    """
    stated: dict[str, Any] = vars(package)
    vendor = stated.get("vendor", stated.get("vendor_info"))
    if not isinstance(vendor, Vendor):
        raise FormatError(
            f"{package.__name__} does not describe a vendor",
            expected="vendor = Vendor(...), or vendor_info = VendorInfoBase(...)",
            found="nothing of the name" if vendor is None else type(vendor).__name__,
            span=Span(str(package.__file__), 1),
        )
    beside = {field: stated[name] for name, field in _BESIDE.items() if name in stated}
    if beside:
        vendor = replace(
            vendor,
            architectures=dict(beside.get("architectures", vendor.architectures)),
            unused=tuple(beside.get("unused", vendor.unused)),
        )
    return vendor
