"""Compiled kernels as artifacts: a file of machine code, and how it is launched.

An artifact is made into a kernel again without Triton.
"""

from __future__ import annotations

from typing import Any

from meta.base import kept_file
from meta.base.caches import distrust
from meta.base.device import Device
from meta.dialect.core import Artifact, Compiled
from meta.dialect.triton.binary import unpacked
from meta.dialect.triton.launch import LaunchPlan
from meta.runtime import chip


def environment(device: Device) -> str:
    """Return what decides whether machine code runs: the architecture. The CPU has none."""
    return chip.compiled_for(device).arch if device.kind == "cuda" else ""


def restore(artifact: Artifact) -> Compiled:
    """Return the kernel of an artifact; ValueError for a record or a file not in good order."""
    record: dict[str, Any] = artifact.record
    if set(record) != {"launch", "device"} or type(record["device"]) is not int:
        raise ValueError(f"{sorted(record)} are not the fields of a kernel's record")
    plan = LaunchPlan.read(record["launch"])
    problem = distrust(artifact.file.stat()) if artifact.file.is_file() else ""
    if problem:
        raise ValueError(f"{artifact.file} is not run: {problem}")
    kept = kept_file.read(artifact.file)
    binaries = None if kept is None else unpacked(kept)
    if binaries is None or len(binaries) != len(plan.passed):
        raise ValueError(f"{artifact.file} does not hold the machine code of a kernel of Triton")
    return Compiled(plan.bind(binaries, record["device"]), artifact)
