"""The folder of a vendor: what is in it, and how it becomes kernels and configurations.

::

    acme/
        __init__.py        vendor = Vendor(...)  or FlagGems' vendor_info = VendorInfoBase(...)
        heuristics_config_utils.py   HEURISTICS_CONFIGS: name -> {constant: function of arguments}
        tune_configs.yaml            configurations by name; see tune_configs.py
        ops/__init__.py              functions with ATen's names and arguments, listed in __all__,
                                     or registrations on a dialect, as @triton_dialect.kernel(...)
        hopper/            the same for an architecture, where ARCH_MAP says which chips have it

All but ``__init__.py`` may be left out. What is more specific goes before: architecture, vendor,
then what is generic. Nothing is taken from another vendor. A function that cannot be used, since
its file needs what is not here, or no operator has its name, is not available with that reason; the
folder is (`imports.py`).
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import platform
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from meta.base import config
from meta.base.device import BUILT_IN, Device
from meta.base.errors import FormatError, MetaError, MetaWarning
from meta.base.registry import nearest
from meta.base.source import Span, python_span
from meta.dialect.core.catalog import DIALECTS, discover
from meta.dialect.core.dialect import Dialect
from meta.dialect.core.openv import Unsupported
from meta.dialect.core.preference import forget
from meta.dialect.core.scope import GENERIC, LaunchSettings, Scope, registering_as
from meta.dialect.torch.aten_calls import BY_FUNCTION
from meta.dialect.torch.correspondence import AtenCall
from meta.dialect.vendors.aten import calls_of, check_signature, is_other_form, kernel_maker
from meta.dialect.vendors.detect import active
from meta.dialect.vendors.idioms import spoken
from meta.dialect.vendors.imports import (
    UNAVAILABLE,
    is_absence,
    public_names,
    raised_in,
    reason_of_failure,
)
from meta.dialect.vendors.jit import NOT_INTERPRETED, interpreted, interprets, needs_interpreter
from meta.dialect.vendors.registry import Known
from meta.dialect.vendors.tune_configs import Tuned, read_tune_configs
from meta.dialect.vendors.vendor import Vendor
from meta.op.core.call import CallValues

TUNE_CONFIGS = "tune_configs.yaml"
HEURISTICS = "heuristics_config_utils"
OPS = Path("ops", "__init__.py")
Heuristics = Mapping[str, Mapping[str, Callable[..., Any]]]


@dataclass(eq=False, slots=True)
class ScopeFiles:
    """What a folder has for one scope.

    Attributes
    ----------
    scope: the vendor, or one of its architectures. tuned, heuristics: by name, or why they cannot
    be used. functions: the operators of ATen that it implements. other_forms: functions that write
    their argument or take ``out=``, which nothing calls. unavailable: by name of a function, why it
    is not used.
    """

    scope: Scope
    tuned: dict[str, Tuned | FormatError] = field(default_factory=dict)
    heuristics: Heuristics | MetaError = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    other_forms: tuple[str, ...] = ()
    unavailable: dict[str, MetaError] = field(default_factory=dict)


class Folder:
    """A vendor's folder that was read: of the vendor, and of architectures as they are met."""

    def __init__(self, known: Known) -> None:
        assert known.vendor is not None and known.package is not None and known.folder is not None
        self.vendor: Vendor = known.vendor
        self._package: ModuleType = known.package
        self._path: Path = known.folder
        self._source = _hash(self._path)
        self._parts: dict[str, ScopeFiles] = {}
        self._failure: Exception | None = None

    def parts(self, architecture: str = "") -> list[ScopeFiles]:
        """Return what there is for an architecture and for the vendor, the most specific first.
        What was not read is read now; raises what is wrong with it, every time.
        """
        if self._failure is not None:
            # A second import would leave out what was imported before.
            raise self._failure
        names = [architecture, ""] if architecture else [""]
        for name in reversed(names):
            if name not in self._parts:
                try:
                    self._parts[name] = self._read(name)
                except Exception as error:
                    self._failure = error
                    self.forget()
                    raise
        return [self._parts[name] for name in names]

    def forget(self) -> None:
        """Take the kernels out of the dialects again."""
        for dialect in DIALECTS.values():
            for name, one in list(dialect.ops.items()):
                one.drop_scoped(self.vendor.name)
                if not one.generic and not one.sites[1:]:
                    del dialect.ops[name]
                    one.base.aspects.dialect_ops.remove(one)
        forget()

    def _read(self, architecture: str) -> ScopeFiles:
        scope = Scope(self.vendor.name, architecture, self._source, self._declines)
        folder = self._path / architecture
        package = ".".join(filter(None, (self._package.__name__, architecture)))
        part = ScopeFiles(scope)
        part.tuned = read_tune_configs(folder / TUNE_CONFIGS)
        reading = Reading(self.vendor, self._package, [part, *self._parts.values()])
        dialect = _dialect_of(self.vendor) if (folder / OPS).is_file() else None
        try:
            with spoken(reading), registering_as(scope):
                if (folder / "__init__.py").is_file():
                    module = importlib.import_module(package)
                    part.heuristics = _heuristics(folder, package, module)
                    if dialect is not None:
                        self._read_ops(dialect, part, folder, package, reading)
        except MetaError:
            raise
        except (Exception, SystemExit) as error:
            raise FormatError(
                f"the files of the {scope} cannot be imported: {type(error).__name__}: {error}",
                found=str(folder),
                hint="META_VENDOR=none leaves vendors out",
                span=raised_in(error, self._path),
            ) from error
        return part

    def _declines(self, call: CallValues) -> str | None:
        """Return why none of the vendor's kernels runs a call, or None."""
        if call.device.kind == "cpu" and self._needs_interpreter and not interprets():
            return NOT_INTERPRETED
        return self.vendor.declines(call)

    @cached_property
    def _needs_interpreter(self) -> bool:
        return needs_interpreter(self._package.__name__)

    def _launching(self, run: Callable[..., Any], reading: Reading) -> Callable[..., Any]:
        """Return a function of the vendor as it is run here."""
        needs = self.vendor.device == "cpu" and self._needs_interpreter
        launched = interpreted(run) if needs else run

        def launching(*values: Any) -> Any:
            with spoken(reading):
                return launched(*values)

        return launching

    def _read_ops(
        self, dialect: Dialect, part: ScopeFiles, folder: Path, package: str, reading: Reading
    ) -> None:
        """Import ``ops/``, and register the functions that it lists."""
        ops = importlib.import_module(f"{package}.ops")
        file = str(folder / OPS)
        listed: Any = getattr(ops, "__all__", ["*"])
        if not isinstance(listed, list | tuple) or not all(isinstance(n, str) for n in listed):
            raise FormatError(
                f"__all__ in the ops of the {part.scope} is no list of names",
                expected='__all__ = ["softmax"], say',
                span=Span(file, 1),
            )
        registered = set(_registered_by(part.scope))
        lost = vars(ops)[UNAVAILABLE]
        functions: dict[str, Callable[..., Any]] = {}
        for name in public_names(ops):
            function = None if name in lost else getattr(ops, name, None)
            if name in self.vendor.unused or (name not in listed and not _is_own(function, ops)):
                continue
            if name in lost:
                part.unavailable[name] = lost[name]
            elif not callable(function):
                what = "is not there" if function is None else "is no function"
                part.unavailable[name] = FormatError(
                    f"{name!r} of __all__ {what}", span=Span(file, 1)
                )
            elif python_span(getattr(function, "fn", function)) not in registered:
                functions[name] = function  # and no decorator registered it
        self._register(dialect, part, functions, reading)

    def _register(
        self,
        dialect: Dialect,
        part: ScopeFiles,
        functions: Mapping[str, Callable[..., Any]],
        reading: Reading,
    ) -> None:
        implemented: dict[str, list[tuple[str, AtenCall, Callable[..., Any] | MetaError]]] = {}
        for name in (*functions, *part.unavailable):
            function = functions.get(name) or part.unavailable[name]
            span = python_span(getattr(function, "fn", function)) or Span(str(self._path / OPS), 1)
            forms = calls_of(name)
            if not forms and is_other_form(name):
                part.other_forms = (*part.other_forms, name)
                continue
            if not forms:
                part.unavailable.setdefault(name, _unknown(name, part.scope, span))
            for form in forms:
                if not isinstance(function, MetaError):
                    try:
                        check_signature(function, name, form)
                    except FormatError as error:
                        error.span = span
                        function = part.unavailable[name] = error
                implemented.setdefault(form.op.name, []).append((name, form, function))
        part.functions = tuple(n for n in functions if calls_of(n) and n not in part.unavailable)
        for implementations in implemented.values():
            _, form, function = implementations[0]
            site = (
                function.span
                if isinstance(function, MetaError)
                else python_span(getattr(function, "fn", function))
            )
            launching = partial(self._launching, reading=reading)
            registered = dialect.register(
                form.op,
                kernel_maker(implementations, str(part.scope), launching),
                site or Span(str(self._path / OPS), 1),
                self.vendor.plevel,
            )
            registered.stands_alone(part.scope)


def _is_own(function: Any, ops: ModuleType) -> bool:
    """Whether a public name of ``ops`` is a function of the folder."""
    own = str(ops.__name__).rpartition(".")[0]
    return inspect.isfunction(function) and function.__module__.startswith(f"{own}.")


def _unknown(name: str, scope: Scope, span: Span) -> FormatError:
    return FormatError(
        f"no operator of meta has the name of {name!r} in the ops of the {scope}",
        expected="a function that is called as one of ATen's operators that meta has",
        hint=f"{nearest(name, BY_FUNCTION)} Or name it in CUSTOMIZED_UNUSED_OPS, "
        "or register it with @triton_dialect.kernel(op)",
        span=span,
    )


@dataclass(eq=False, slots=True)
class Reading:
    """What the files of a folder find in it; see `idioms.Launches`."""

    vendor: Vendor
    package: ModuleType
    parts: list[ScopeFiles]

    def configs(self, name: str) -> tuple[Mapping[str, Any], ...] | None:
        found = next((p.tuned[name] for p in self.parts if name in p.tuned), None)
        if isinstance(found, FormatError):
            raise found
        return None if found is None else found.configs

    def heuristics(self, name: str) -> Mapping[str, Callable[..., Any]] | None:
        for part in self.parts:
            if isinstance(part.heuristics, MetaError):
                raise part.heuristics
            if name in part.heuristics:
                return part.heuristics[name]
        return None

    def names(self) -> list[str]:
        heuristics = (p.heuristics for p in self.parts if not isinstance(p.heuristics, MetaError))
        return sorted({n for of in (*heuristics, *(p.tuned for p in self.parts)) for n in of})


def launch(parts: list[ScopeFiles], name: str) -> LaunchSettings:
    """Return how the kernels of a name are to be launched, by the most specific that says so;
    Unsupported for what cannot be used.
    """
    part = next((p for p in parts if name in p.tuned), None)
    heuristic = next((p for p in parts if name in _known(p.heuristics)), None)
    tuned = None if part is None else part.tuned[name]
    if isinstance(tuned, FormatError):
        raise Unsupported(f"{tuned.what} ({tuned.span})")
    return LaunchSettings(
        tuned.configs if tuned else (),
        _known(heuristic.heuristics)[name] if heuristic else {},
        part.scope if part else GENERIC,
        heuristic.scope if heuristic else GENERIC,
        tuned.place if tuned else None,
    )


def _known(heuristics: Heuristics | MetaError) -> Heuristics:
    return {} if isinstance(heuristics, MetaError) else heuristics


def architecture_of(vendor: Vendor, device: Device) -> str:
    """Return the name that `Vendor.architectures` has for a device, "" if it has none.

    It is looked for by what torch says of a GPU: the target of an AMD GPU ("gfx942"), then
    "major.minor", then the major version; of the CPU by `platform.machine`.
    """
    if not vendor.architectures:
        return ""
    return next((vendor.architectures[k] for k in _says(device) if k in vendor.architectures), "")


def _says(device: Device) -> Iterator[str]:
    if device.kind == "cpu":
        yield platform.machine()
        return
    describe = getattr(torch.get_device_module(device.kind), "get_device_properties", None)
    if describe is None:
        return
    properties = describe(device.ordinal)
    target = str(getattr(properties, "gcnArchName", "") or "")
    if target:
        yield target.partition(":")[0]
    if hasattr(properties, "major"):
        yield f"{properties.major}.{properties.minor}"
        yield str(properties.major)


def _dialect_of(vendor: Vendor) -> Dialect:
    discover()
    dialect: Dialect = DIALECTS[vendor.dialect]
    dialect.load()
    return dialect


def _registered_by(scope: Scope) -> Iterator[Span]:
    """Yield where the kernels of a scope are defined."""
    for dialect in DIALECTS.values():
        for one in dialect.ops.values():
            yield from one.sites_of(scope)


def _heuristics(folder: Path, package: str, module: ModuleType) -> Heuristics | MetaError:
    """Return HEURISTICS_CONFIGS of a file, or of the package itself; or what they need and is not
    here.
    """
    if (folder / f"{HEURISTICS}.py").is_file():
        try:
            module = importlib.import_module(f"{package}.{HEURISTICS}")
        except Exception as error:
            if is_absence(error):
                return reason_of_failure(error)
            raise
    found = getattr(module, "HEURISTICS_CONFIGS", {})
    where = Span(str(module.__file__), 1)
    if not isinstance(found, Mapping):
        raise FormatError("HEURISTICS_CONFIGS is no mapping", found=found, span=where)
    for name, values in found.items():
        if not isinstance(values, Mapping) or not all(map(callable, values.values())):
            raise FormatError(
                f"the heuristics of {name!r} are no functions",
                expected="a mapping from a constant's name to a function of the arguments",
                found=values, span=where,
            )  # fmt: skip
    return found


def _hash(folder: Path) -> str:
    content = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".yaml")):
        content.update(f"{file.relative_to(folder)}\0".encode())
        content.update(file.read_bytes())
    return content.hexdigest()[:16]


def read(known: Known) -> Folder:
    """Return the folder of a vendor, which is read once; an error is raised each time."""
    found: Folder | None = known.details.get("folder")
    if found is None:
        found = Folder(known)
        known.details["folder"] = found
        known.details.setdefault("undo", []).append(partial(Folder.forget, found))
    return found


# Which of them are in force on a device.


_lock = threading.RLock()
_reads = False


def files_on(device: Device) -> list[ScopeFiles]:
    """Return what the vendor in force on a device has, the most specific first; nothing where
    none is. Its files are read when they are first asked for.

    Files that are wrong are a FormatError where META_VENDOR names the vendor, or where nobody else
    has the device. Otherwise the vendor is left out, which a MetaWarning says once. Raises
    UnknownName and DeviceError as `active`.
    """
    global _reads
    if _reads:  # what a vendor's file asks for while it is read is answered without it
        with _lock:
            if _reads:
                return []
    one = active(device.kind)
    if one is None or one.vendor is None:
        return []
    with _lock:
        _reads = True
        try:
            return read(one).parts(architecture_of(one.vendor, device))
        except MetaError as error:
            if config.get("META_VENDOR") or device.kind not in BUILT_IN:
                raise
            if not one.unavailable:
                one.unavailable = f"its files cannot be used: {error.what} ({error.span})"
                text = f"the vendor {one.name!r} is left out: {one.unavailable}"
                warnings.warn(text, MetaWarning, stacklevel=2)
            return []
        finally:
            _reads = False


def scopes(device: Device) -> tuple[Scope, ...]:
    """Return the scopes in force on a device; see `core.scope.VENDORS`."""
    return tuple(part.scope for part in files_on(device))


def launch_on(name: str, device: Device) -> LaunchSettings:
    """Return how kernels of a name are launched on a device; see `core.scope.LAUNCH_SETTINGS`."""
    return launch(files_on(device), name)
