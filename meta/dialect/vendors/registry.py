"""Which vendors there are: those that packages announce, and those that are added by hand.

A package announces one through the entry-point group ``meta.vendors``, under the vendor's name. The
object is the package itself, laid out as `folder.py` says, or a path to such a folder.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from meta.base.bounded_cache import bounded_insert
from meta.base.device import set_further_kinds
from meta.base.errors import FormatError, MetaError, RegistrationError, UnknownName
from meta.base.registry import announced, nearest
from meta.base.source import Span
from meta.dialect.core.backend_errors import located, summary
from meta.dialect.core.preference import forget
from meta.dialect.vendors.idioms import spoken
from meta.dialect.vendors.imports import UNAVAILABLE, FolderLoader, packages, raised_in
from meta.dialect.vendors.vendor import Vendor

GROUP = "meta.vendors"


@dataclass(eq=False, slots=True)
class Known:
    """A vendor and where it is from.

    Attributes
    ----------
    name: as it is announced. vendor: None if its package cannot be imported. package: its module.
    unavailable: why there is no vendor, empty if there is one. details: what others keep of it;
    the functions of its ``undo`` are called when it is removed.
    """

    name: str
    vendor: Vendor | None = None
    package: ModuleType | None = None
    unavailable: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path | None:
        """Where its files are."""
        file = None if self.package is None else self.package.__file__
        return None if file is None else Path(file).parent


_known: dict[str, Known] = {}
_folders: dict[Path, Known] = {}
_lock = threading.RLock()
_discovered = False
_generation = 0


def known() -> list[Known]:
    """Return all vendors, by name."""
    _discover()
    return [_known[name] for name in sorted(_known)]


def generation() -> int:
    """Return a number that changes when a vendor is added or removed."""
    _discover()
    return _generation


def find(name: str) -> Known:
    """Return a vendor by its name, or by the path of its folder, which is then added.

    Raises UnknownName that lists the vendors there are.
    """
    if os.sep in name:
        return _added(Path(name))
    _discover()
    if name not in _known:
        choices = sorted(_known)
        raise UnknownName(
            f"there is no vendor {name!r}",
            expected=f"one of {', '.join(choices)}, or none"
            if choices
            else "none, or the path of a vendor's folder: no vendor is installed",
            hint=nearest(name, choices) if choices else "meta.dialect.vendors.add(path)",
        )
    return _known[name]


def add(path: str | os.PathLike[str]) -> Vendor:
    """Add the vendor of a folder; of one that was added before, return it again.

    The folder is laid out as docs/guides/vendor.md says. Only its ``__init__.py`` is read now, the
    rest when a call first may run on the vendor's chip. It is code: add only what you trust.

    Raises FormatError for a folder that describes no vendor, RegistrationError for a name that is
    taken.
    """
    vendor = _added(Path(path)).vendor
    assert vendor is not None
    return vendor


def _added(path: Path) -> Known:
    _discover()
    folder = path.expanduser().resolve()
    with _lock:
        found = _folders.get(folder)
        if found is None:
            package = import_folder(folder)
            try:
                vendor = vendor_in(package)
            except FormatError:
                drop(package.__name__)
                raise
            _register(Known(vendor.name, vendor, package))
            found = _known[vendor.name]
            bounded_insert(_folders, folder, found, 1024)
        return found


def remove(name: str) -> None:
    """Forget a vendor and its kernels, in this process: for tests, and to read a folder anew."""
    with _lock:
        find(name)
        one = _known.pop(name)
        for folder in [f for f, known_ in _folders.items() if known_ is one]:
            del _folders[folder]
            if one.package is not None:
                drop(one.package.__name__)
        for undo in one.details.pop("undo", ()):
            undo()
        _changed()


def _register(one: Known) -> None:
    if one.name in _known:
        raise RegistrationError(
            f"the vendor {one.name!r} is there twice",
            found=f"{one.folder} and {_known[one.name].folder}",
            hint=f"meta.dialect.vendors.remove({one.name!r}) forgets the first",
        )
    _known[one.name] = one
    _changed()


def _changed() -> None:
    global _generation
    _generation += 1
    set_further_kinds(one.vendor.device for one in _known.values() if one.vendor is not None)
    forget()


def _discover() -> None:
    """Import the packages that announce a vendor, once. One that raises is unavailable."""
    global _discovered
    if _discovered:
        return
    with _lock:
        if _discovered:
            return
        _discovered = True
        for point in sorted(announced(GROUP), key=lambda point: point.name):
            try:
                _register(_announced(point))
            except RegistrationError as error:
                _known[f"{point.name} ({point.value})"] = Known(point.name, unavailable=str(error))


def _announced(point: EntryPoint) -> Known:
    packages[point.module] = Path()
    try:
        with spoken():
            loaded = point.load()
        if isinstance(loaded, ModuleType):
            packages[point.module] = Path(str(loaded.__file__)).parent
        else:
            del packages[point.module]
            loaded = import_folder(Path(loaded).resolve())
        vendor = vendor_in(loaded)
        if vendor.name != point.name:
            raise RegistrationError(
                f"it calls itself {vendor.name!r}", expected=f"the announced name {point.name!r}"
            )
    except (Exception, SystemExit) as error:
        packages.pop(point.module, None)
        why = error.what if isinstance(error, MetaError) else located(error)
        if isinstance(error, FormatError):
            why += f" ({error.span})"
        return Known(point.name, unavailable=f"{point.value} cannot be used: {why}")
    return Known(point.name, vendor, loaded)


# The folder of a vendor as a Python package, and what it says of the vendor.


_FLAGGEMS_NAMES = {"ARCH_MAP": "architectures", "CUSTOMIZED_UNUSED_OPS": "unused"}


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
        name, file, loader=FolderLoader(name, str(file)), submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name], packages[name] = package, folder
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


def _is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def drop(name: str) -> None:
    """Forget an imported package and its modules."""
    packages.pop(name, None)
    for one in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[one]


def vendor_in(package: ModuleType) -> Vendor:
    """Return the vendor that a package describes, as ``vendor`` or ``vendor_info``; FormatError if
    it describes none.
    """
    stated: dict[str, Any] = vars(package)
    vendor = stated.get("vendor", stated.get("vendor_info"))
    if not isinstance(vendor, Vendor):
        lost = next(iter(stated.get(UNAVAILABLE, {}).values()), None)
        raise FormatError(
            f"{package.__name__} does not describe a vendor" + (f": {lost.what}" if lost else ""),
            expected="vendor = Vendor(...), or vendor_info = VendorInfoBase(...)",
            found="nothing of the name" if vendor is None else type(vendor).__name__,
            span=lost.span if lost else Span(str(package.__file__), 1),
        )
    beside = {field: stated[name] for name, field in _FLAGGEMS_NAMES.items() if name in stated}
    if beside:
        vendor = replace(
            vendor,
            architectures=dict(beside.get("architectures", vendor.architectures)),
            unused=tuple(beside.get("unused", vendor.unused)),
        )
    return vendor
