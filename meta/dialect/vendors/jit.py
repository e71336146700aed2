"""Functions of ``triton.jit`` in the files of a vendor, on the CPU: who runs them.

Such a function is launched by the vendor's own code, as ``kernel[grid](x, y)``. Triton's compiler
makes it for a CPU only where a backend for CPUs is installed. Elsewhere Triton's interpreter runs
it, if that is asked for (META_TRITON_INTERPRET), for tests.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from meta.base import config

NOT_INTERPRETED = (
    "its kernels are Triton's, which this CPU runs by Triton's interpreter only, for tests: "
    "META_TRITON_INTERPRET=1"
)


def interprets() -> bool:
    """Whether kernels on the CPU are interpreted here."""
    if config.get("META_TRITON_INTERPRET"):
        return True
    triton = sys.modules.get("triton")
    return triton is not None and bool(triton.knobs.runtime.interpret)


def needs_interpreter(package: str) -> bool:
    """Whether a package has a function that neither compiler nor interpreter is to run on this
    CPU, unless `config` says that the interpreter does.
    """
    if "triton" not in sys.modules:
        return False
    from triton.backends import backends
    from triton.runtime.jit import JITFunction

    if "cpu" in backends:
        return False
    modules = [
        module
        for name, module in list(sys.modules.items())
        if name == package or name.startswith(f"{package}.")
    ]
    values = (value for module in modules for value in list(vars(module).values()))
    return any(isinstance(_launched(value), JITFunction) for value in values)


def _launched(value: Any) -> Any:
    """Return the function under the decorators of Triton."""
    while type(value).__module__.startswith("triton.runtime.autotuner"):
        value = value.fn
    return value


def interpreted(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose launches Triton's interpreter runs."""
    launches = importlib.import_module("meta.dialect.triton.interpreter").interpreting_launches

    def launching(*values: Any) -> Any:
        with launches():
            return run(*values)

    return launching
