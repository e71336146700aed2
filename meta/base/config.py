"""The one table of knobs: every `META_*` environment variable, its type, its default and what it
does.

``python -m meta env`` prints it. Nothing else in the package reads the environment. To add a knob,
add a row to `KNOBS`; read it with ``config.get("META_...")``; override it for a block with ``with
config.override(META_...=...)``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from meta.base.call_context import context, override_context
from meta.base.errors import ArgumentError, UnknownName
from meta.base.registry import nearest


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "on", "yes"):
        return True
    if text.lower() in ("0", "false", "off", "no", ""):
        return False
    raise ValueError(text)


def _choice(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    parse.__name__ = f"one of {', '.join(words)}"
    return parse


def _nans(text: str) -> str:
    if text.lower() in ("nan", "inf"):
        return text.lower()
    return "nan" if _flag(text) else ""


_nans.__name__ = "one of 1, inf, 0"


@dataclass(frozen=True, slots=True)
class Knob:
    """One environment variable."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str


KNOBS: dict[str, Knob] = {
    row[0]: Knob(*row)
    for row in (
        ("META_VERIFY", _flag, False,
         "verify the IR after every pass, check what kernels of eager calls promise, and compare "
         "the first call of a compiled program with the interpreter"),
        ("META_STRICT_DTYPES", _flag, False,
         "operands of several dtypes are an error, not cast to one"),
        ("META_CHECK_ACCESS", _flag, False,
         "check that kernels of eager calls, and tasks, write what they are to write and nothing "
         "else, and that tasks ask for what they declare"),
        ("META_DEBUG_NANS", _nans, "",
         "stop at the first operator that makes a NaN of values without one, and name it: 1; or an "
         "infinity, too: inf"),
        ("META_CHECK_INDICES", _flag, False,
         "look for indices out of range on CUDA, too, where each look waits for the device"),
        ("META_DEBUG", _flag, False, "print the module after every pass"),
        ("META_DUMP_IR", str, "",
         "a folder for the program after every pass, one file each (empty: none)"),
        ("META_FUEL", int, -1, "stop after this many passes, to bisect a bad one (-1: no limit)"),
        ("META_CACHE_DIR", str, "",
         "where compiled kernels and programs are kept (empty: the user's cache folder)"),
        ("META_CACHE", _flag, True, "keep compiled kernels on disk"),
        ("META_CACHE_SIZE", int, 4096,
         "MiB that all caches on disk may take together; what was used last stays (0: no bound)"),
        ("META_PROGRAM_CACHE", _flag, True, "keep compiled programs on disk, beside their kernels"),
        ("META_COMPILE_THREADS", int, 0,
         "how many threads compile kernels (0: one for each core, up to 16)"),
        ("META_CPU_TARGET", str, "", "TVM target of the CPU kernels (empty: this machine)"),
        ("META_CC", str, "",
         "C compiler that links exported libraries (empty: cc, gcc or clang)"),
        ("META_TF32", _flag, False,
         "allow TensorFloat-32 in float32 convolutions and matrix products on CUDA"),
        ("META_CUDA_GRAPH", _flag, True,
         "record compiled programs as CUDA graphs where that can be done"),
        ("META_SIZES", int, 16,
         "for how many sizes of its symbolic dimensions a program is compiled anew on CUDA"),
        ("META_TUNE", _choice("off", "cached", "on"), "cached",
         "choose kernels by what was measured of them: off, cached (what is kept), or on (measure "
         "what is not)"),
        ("META_TRITON_INTERPRET", _flag, False,
         "run kernels of Triton on the CPU by Triton's interpreter, for tests"),
        ("META_VENDOR", str, "",
         "whose kernels and configurations are used: the name of a vendor, or the path of its "
         "folder (empty: the one whose chip is found; none: no vendor's)"),
        ("META_MAX_DEPTH", int, 1_000_000,
         "how many calls and branches of a program may wait for one another"),
        ("META_RANGES", _choice("off", "torch", "nvtx"), "off",
         "name a range for each kernel of programs that are compiled or loaded meanwhile, without "
         "CUDA graphs: a record of torch.profiler (torch), or a range of NVTX (nvtx)"),
        ("META_PROGRESS", str, "auto", "progress bars: auto (on a terminal), on, off"),
    )
}  # fmt: skip

# The environment as os.environ keeps it, which hands every change of itself on to C's. Its own
# methods raise and catch KeyError for a name that is not there: 1.1 us, a quarter of a launch; this
# takes 0.2, and a float32 product on CUDA asks at every call. PyDLL keeps Python's lock meanwhile,
# so that no thread changes a text that is being read.
_getenv = ctypes.PyDLL(None).getenv
_getenv.restype = ctypes.c_char_p
_NAMES = {name: os.fsencode(name) for name in KNOBS}


def show_single_gpu(ordinal: int) -> None:
    """Let CUDA show this process one of the GPUs that it may see, as number 0: before CUDA starts,
    which then reads this from the environment.
    """
    name = "CUDA_VISIBLE_DEVICES"
    listed = os.environ.get(name)
    os.environ[name] = listed.split(",")[ordinal].strip() if listed else str(ordinal)


def sleep_when_idle() -> None:
    """Let the threads of OpenMP sleep when they have nothing to do, unless the environment says
    what they do: before torch is imported, whose libraries read this from the environment.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


_LAUNCH = (
    *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"),
)


def launch() -> dict[str, str]:
    """Return what a launcher, as torchrun, says in the environment of the process that it starts.

    These are no knobs: the names are PyTorch's.
    """
    return {name: os.environ[name] for name in _LAUNCH if name in os.environ}


def current_overrides() -> dict[str, Any] | None:
    """Return the knobs that `override` has set here, None outside of such blocks."""
    return context.get().knobs


def _knob(name: str) -> Knob:
    if name not in KNOBS:
        raise UnknownName(f"there is no knob named {name!r}", hint=nearest(name, KNOBS))
    return KNOBS[name]


def get(name: str) -> Any:
    """Return a knob's value: innermost override, else environment, else default.

    Raises UnknownName for a knob that is not in the table and ArgumentError for a text that does
    not parse.
    """
    knob = _knob(name)
    overrides = current_overrides()
    if overrides is not None and name in overrides:
        return overrides[name]
    found = _getenv(_NAMES[name])
    if found is None:
        return knob.default
    text = os.fsdecode(found)
    try:
        return knob.parse(text)
    except ValueError:
        raise ArgumentError(
            f"the environment variable {name} cannot be read",
            expected=f"{knob.parse.__name__.strip('_')}, for example {knob.default!r}",
            found=repr(text),
        ) from None


def override(**values: Any) -> AbstractContextManager[None]:
    """Set knobs for a block, in this thread (or task) only; UnknownName for an unknown one."""
    for name in values:
        _knob(name)
    return _set(values)


@contextmanager
def _set(values: dict[str, Any]) -> Iterator[None]:
    # What was set before is asked on entry: the block may be entered later than made.
    with override_context(knobs={**(current_overrides() or {}), **values}):
        yield


def table() -> list[dict[str, Any]]:
    """Return one record per knob: name, value, default, help."""
    return [
        {"name": k.name, "value": get(k.name), "default": k.default, "help": k.help}
        for k in KNOBS.values()
    ]
