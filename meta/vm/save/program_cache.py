"""Compiled programs on disk: a second process compiles nothing, and does not import a compiler.

A program is found by a hash of everything that decides its code: its text with the user's lines,
device, passes and their options, preferences, knobs, versions, and the source of this package. It
lies in a folder of the form of `folder.py`, and one that is damaged is as good as none.

Programs are left out if an operator of theirs, or a backend, kernel or fused pattern that might
run them, is from outside of this package: nothing says when such code changes.

Nothing here fails a compilation: what cannot be written is not kept, with a warning. The bound is
that of all caches (`meta.base.caches`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path

import torch

from meta.base import caches, config
from meta.base.caches import cache_folder, open_private
from meta.base.device import Device
from meta.base.errors import FormatError
from meta.base.log import LOG
from meta.base.registry import OPERATORS
from meta.cost.chooser import tuning
from meta.cost.store import generation
from meta.dialect.core import DialectOp, dialects
from meta.dialect.core.preference import current as current_preference
from meta.dialect.core.scope import marks
from meta.ir import Module, bindings, operands, text
from meta.ir.constants import tensor_bytes
from meta.op.core import Op
from meta.passes import Pipeline
from meta.passes.manager import Pass, pass_name
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.save.folder import read_folder, write_folder

_PACKAGE = Path(__file__).parents[2]
_VERSIONS = ("numpy", "torch")
# What must not be skipped: these ask for the passes to be seen, checked or cut short.
_OBSERVED = ("META_DEBUG", "META_DUMP_IR", "META_FUEL", "META_VERIFY")
# What does not change a program.
_NEUTRAL = (
    *("META_CACHE", "META_CACHE_DIR", "META_CACHE_SIZE", "META_COMPILE_THREADS"),
    *("META_CUDA_GRAPH", "META_PROGRAM_CACHE", "META_PROGRESS", "META_RANGES", "META_TUNE"),
)


def key_of(module: Module, passes: Pipeline, device: Device) -> str | None:
    """Return the name under which a program is kept, None if it is not to be.

    ``module``: as it was traced. ``passes``: what turns it into code.
    """
    knobs = {k["name"]: (k["value"], k["default"]) for k in config.table()}
    if not config.get("META_CACHE") or not config.get("META_PROGRAM_CACHE"):
        LOG.info("the program cache is off")
        return None
    if any(knobs[name][0] != knobs[name][1] for name in _OBSERVED) or not _is_ours(module):
        LOG.info("not for the program cache: %s, or operators of others", ", ".join(_OBSERVED))
        return None
    preference = current_preference()
    constants: dict[str, torch.Tensor] = {}
    parts = [
        text(module, constants),
        str(device),
        repr([_described(step) for step in passes.passes]),
        repr((preference.first, preference.by_op, preference.only, sorted(preference.excluded))),
        repr((tuning(), "" if tuning() == "off" else generation(device))),
        repr(sorted((name, value) for name, (value, _) in knobs.items() if name not in _NEUTRAL)),
        repr([(d.name, d.unavailable, d.devices) for d in dialects()]),
        marks(device),
        *(f"{name} {version(name)}" for name in _VERSIONS),
        _environments(device),
        _sources(),
    ]
    content = hashlib.sha256("\0".join(parts).encode())
    for tensor in constants.values():  # the text has their names and types
        content.update(tensor_bytes(tensor))
    return content.hexdigest()


def find(key: str) -> BoundProgram | None:
    """Return the compiled program of a key, None if there is none in good order."""
    where = cache_folder("programs")
    if problem := open_private(where):
        LOG.info("no program is taken from the cache: %s", problem)
        return None
    folder = where / key[:2] / key
    try:
        found, _ = read_folder(folder)
    except (FormatError, OSError) as error:  # absent, damaged, just being removed: compiled anew
        LOG.info("no program in the cache: %s", getattr(error, "what", error))
        return None
    caches.touch(folder)
    return found


def store(key: str, program: BoundProgram) -> None:
    """Keep a compiled program, if the folder can be used."""
    where = cache_folder("programs")
    _, problem = caches.problems(where)
    if problem:
        caches.warn_unwritable(problem)
        return
    folder = where / key[:2] / key
    try:
        write_folder(folder, program, place=_link_or_copy)
        size = sum(p.stat().st_size for p in folder.iterdir())  # kernels are links
    except OSError as error:  # a full disk, for one
        caches.warn_unwritable(str(error))
        return
    caches.count_written(size)


def _is_ours(module: Module) -> bool:
    """Whether all operators, kernels and patterns that may be used are of this package."""
    used = {
        atom
        for function in module.functions.values()
        for binding in bindings(function)
        for atom in operands(binding.value)
        if isinstance(atom, DialectOp | Op)
    }
    if not all((op.base if isinstance(op, DialectOp) else op).site.is_own for op in used):
        return False
    shipped = [op for op in OPERATORS.values() if op.site.is_own]
    kernels = (kernel for op in shipped for kernel in op.aspects.dialect_ops)
    patterns = (pattern for d in dialects() for pattern in d.patterns.values())
    sites = (site for kernel in kernels for site in kernel.sites)
    return all(one.is_own for one in (*(one.site for one in (*dialects(), *patterns)), *sites))


def _described(step: Pass) -> str:
    """Return a pass's name and options, without those that the pipeline gives."""
    options = step.keywords if isinstance(step, partial) else {}
    given = {k: v for k, v in options.items() if k not in ("device", "lower")}
    return f"{pass_name(step)}{sorted(given.items())}"


def _environments(device: Device) -> str:
    """Return on what the kernels of each dialect run here."""
    kept = [d for d in dialects() if d.restorer and d.unavailable is None]
    return repr([(d.name, d.environment(device)) for d in kept])


@lru_cache(maxsize=1)
def _sources() -> str:
    """Return a hash of this package's source."""
    content = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        content.update(str(path.relative_to(_PACKAGE)).encode())
        content.update(path.read_bytes())
    return content.hexdigest()


def _link_or_copy(source: Path, target: Path) -> None:
    """Link a kernel's file, which never changes; copy it where that cannot be done."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
