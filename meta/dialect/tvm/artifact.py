"""Compiled kernels as artifacts: a library, a symbol in it, and how it is launched.

An artifact is made into a kernel again without TVM's Python package.
"""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from meta.base import config
from meta.base.caches import distrust
from meta.base.device import Device
from meta.dialect.core import Artifact, Compiled
from meta.dialect.tvm import cache
from meta.dialect.tvm.launch import LaunchPlan
from meta.dialect.tvm.workspace import launcher, total_bytes
from meta.runtime import gpu_properties


def environment(device: Device) -> str:
    """Return what decides whether compiled code runs: TVM's version, and the processor."""
    versions = ", ".join(map(_versioned, ("apache-tvm", "apache-tvm-ffi")))
    if device.kind == "cuda":
        return f"{versions}, {platform.machine()}, {gpu_properties.query(device.ordinal).arch}"
    wanted = config.get("META_CPU_TARGET")
    features = hashlib.sha256(_features().encode()).hexdigest()[:16]
    return f"{versions}, {platform.machine()}, features {features}, target {wanted!r}"


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


@lru_cache(maxsize=1)
def _features() -> str:
    """Return what the processor can do, as Linux lists it; elsewhere, its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    found = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return "\n".join(sorted(found))


def artifact_of(stored: cache.Stored, launch: LaunchPlan) -> Artifact:
    """Return the artifact of a function in the cache."""
    record = {
        "symbol": stored.symbol,
        "workspaces": [workspace.record() for workspace in stored.workspaces],
        "launch": launch.record(),
    }
    return Artifact(stored.file, record)


def restore(artifact: Artifact) -> Compiled:
    """Return the kernel of an artifact; ValueError for a record or a file not in good order."""
    record: dict[str, Any] = artifact.record
    if set(record) != {"symbol", "workspaces", "launch"}:
        raise ValueError(f"{sorted(record)} are not the fields of a kernel's record")
    workspaces = cache.read_workspaces(record["workspaces"])
    if workspaces is None or not isinstance(record["launch"], dict):
        raise ValueError("a kernel's record is damaged")
    launch = LaunchPlan.read(record["launch"])
    problem = distrust(artifact.file.stat()) if artifact.file.is_file() else ""
    if problem:
        raise ValueError(f"{artifact.file} is not run: {problem}")
    module = cache.load_verified(artifact.file)
    symbol = record["symbol"]
    if module is None or not isinstance(symbol, str) or not module.implements_function(symbol):
        raise ValueError(f"{artifact.file} does not hold the kernel {symbol!r} in good order")
    run = launch.bind(launcher(module.get_function(symbol), workspaces))
    return Compiled(run, artifact, total_bytes(workspaces))
