"""`Backend`: what is stated of a backend and asked of it: where it runs, and why not; its modules.

`dialect.py` adds the implementations of operators that it offers.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meta.base import gc_pause
from meta.base.device import Device
from meta.base.errors import MetaWarning, RegistrationError
from meta.base.source import Span, caller_span, definition_span
from meta.dialect.core.backend_errors import located, summary
from meta.dialect.core.plevel import COMPILER
from meta.dialect.core.preference import forget
from meta.dialect.core.registration_checks import check_dialect
from meta.dialect.core.scope import GENERIC, registering_as
from meta.ir.expr import Function
from meta.op.core.call import CallValues
from meta.op.core.op import Op
from meta.op.core.registration import reason_of

Probe = Callable[[], str | None]


@dataclass(eq=False)
class Backend:
    """What a `Dialect` states.

    Parameters
    ----------
    name: by which users prefer or exclude it.
    devices: device kinds on which it can run.
    plevel: level of its operators unless they state their own or `plevel.from_table` has one.
    probe: returns None if the backend is usable on this machine, else the reason why not.
    package: a package whose modules register the operators; imported when they are first asked for.
    compiles: whether it compiles a kernel for each new call, which takes long: eager calls go to
        other dialects first (see `dispatch`), compiled programs by plevel alone.
    once: of a dialect that compiles, the operator families whose kernels are compiled once for all
        shapes, so that their eager calls go by plevel too.
    by_family: whether the package's module of the name of an operator family registers all kernels
        of that family, so that an eager call needs no other module.
    warmup: does for a device what takes long before the backend's first kernel in a process, and
        leaves the interpreter to others; see `warm_up`. What it has not done is done when it is
        needed.
    declines: of a call, why none of its kernels runs it, or None; see `kernel` for the reasons of
        one kernel.
    time_limit: of a backend that may hang, seconds in which it makes a kernel and has run it once,
        if ever; measuring tries that in a process of its own first. None: it is trusted.
    restorer: a module whose function ``restore(artifact)`` makes a kernel (`CompiledKernel`) of an
        `Artifact` again, where ``environment(device)`` returns what it did; imported when one is
        first met, without the package's other modules.
    linkable: a module that gives kernels as object files, for libraries without Python: its
        function ``refusal(kernel)`` returns why one cannot be linked, or None, and
        ``object_code(kernels, device)`` an `ObjectCode`.
    """

    name: str
    devices: tuple[str, ...]
    plevel: int = COMPILER
    probe: Probe | None = None
    package: str = ""
    restorer: str = ""
    linkable: str = ""
    warmup: Callable[[Device], None] | None = None
    compiles: bool = False
    once: tuple[str, ...] = ()
    by_family: bool = False
    declines: Callable[[CallValues], str | None] | None = None
    time_limit: float | None = None
    # What kernels are made of besides the files of the package: costs are of it, too. No field.
    registered_text = ""

    def __post_init__(self) -> None:
        self.site = caller_span(2)  # above `Dialect.__post_init__` and what `dataclass` makes
        check_dialect(self)
        self.ops: dict[str, Any] = {}
        # Compiles a function of this dialect's operators to one kernel, if the backend can.
        self.fuse: Callable[[Function, Device], Any] | None = None
        # Whether its kernel of a function that is not elementwise may write over a parameter.
        self.overwrites: Callable[[Function, Device], bool] = lambda function, device: False
        self._loading, self._entered = threading.RLock(), False
        self._families: set[str] = set()

    @cached_property
    def unavailable(self) -> str | None:
        """Why the backend cannot be used on this machine, or None. A probe that fails is a reason:
        it does not stop calls that others run.
        """
        if self.probe is None:
            return None
        try:
            return reason_of(self.probe, self.probe(), "its probe")
        except RegistrationError as error:
            return f"{error.what}, not None or the reason why not ({error.span})"
        except (Exception, SystemExit) as error:
            return f"its probe at {definition_span(self.probe)} fails: {summary(error)}"

    def compiles_anew(self, base: Op) -> bool:
        """Return whether a call of an operator in new shapes compiles a kernel."""
        return self.compiles and base.family not in self.once

    def load(self) -> None:
        """Import the modules that register the operators. Does nothing the second time, or if
        unavailable. Where a module fails the dialect is unavailable, which a MetaWarning says.
        """
        if not self.package or self.unavailable is not None:
            return
        # Another thread waits, lest it sees half of the operators.
        with self._loading, gc_pause.gc_paused(), registering_as(GENERIC):
            # The family files may dispatch while they are imported; a thread may have waited.
            if self._entered or not self.package or self.unavailable is not None:
                return
            self._entered = True
            try:
                package = importlib.import_module(self.package)
                for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                    importlib.import_module(f"{self.package}.{module.name}")
            except (Exception, SystemExit) as error:
                self._cannot_load(error)
                return
            finally:
                self._entered = False
            self.package = ""

    def load_for(self, base: Op) -> None:
        """Import what registers the kernels of an operator's family, or all modules if
        nothing says which do so. Otherwise as `load`.
        """
        if not self.by_family:
            self.load()
        # The families of the operators of others are no modules of ours.
        elif base.site.is_own or not self.site.is_own:
            self.load_family(base.family)

    def family_of(self, site: Span) -> str | None:
        """Return the family whose file registers what is at a place; None if that is not known."""
        file = Path(site.file)
        return file.stem if self.by_family and file.parent == Path(self.site.file).parent else None

    def load_family(self, family: str) -> None:
        """Import what registers the kernels of a family, if there is such a file."""
        if not self.package or family in self._families or self.unavailable is not None:
            return
        with self._loading, gc_pause.gc_paused(), registering_as(GENERIC):
            module = f"{self.package}.{family}"
            try:
                if family.isidentifier() and importlib.util.find_spec(module) is not None:
                    importlib.import_module(module)
            except (Exception, SystemExit) as error:
                self._cannot_load(error)
            self._families.add(family)

    def _cannot_load(self, error: BaseException) -> None:
        """Be unavailable from now on: a second import would say that operators are there twice."""
        self.unavailable = f"its package {self.package} cannot be imported: {located(error)}"
        warnings.warn(f"dialect {self.name!r}: {self.unavailable}", MetaWarning, stacklevel=2)
        forget()

    def environment(self, device: Device) -> str:
        """Return what has to be the same where a kept kernel is to run: versions, processor."""
        found: str = importlib.import_module(self.restorer).environment(device)
        return found

    def refusal(self, device: Device) -> str | None:
        """Return why this dialect cannot run on a device at all, or None; a dialect may have more
        reasons.
        """
        return self.absence(device)

    def absence(self, device: Device) -> str | None:
        """Return why a device is none of this dialect's, or why it is not usable here, or None."""
        if device.kind not in self.devices:
            return f"does not run on {device.kind}, only on {' and '.join(self.devices)}"
        return self.unavailable
