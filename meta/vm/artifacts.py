"""Kernels of a program as artifacts: what is written of each, and how it is made again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from meta.base.device import Device
from meta.base.errors import FormatError
from meta.base.registry import OPERATORS
from meta.dialect.core import Artifact, OpEnv
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.dispatch import counting
from meta.op.core.call import written_places
from meta.vm.by_extents import ForAllExtents
from meta.vm.code import Code, Kernel, KernelRef


def dialect_of(kernel: Kernel) -> str:
    """Return the name of the dialect that runs a kernel, "" if that is decided at run time."""
    if isinstance(kernel, KernelRef):
        return kernel.operator.rpartition(".")[0]
    return kernel.dialect


def artifact_records(kernels: Sequence[OpEnv]) -> list[dict[str, Any] | None]:
    """Return, for each kernel, the name of its file and what else is needed; None without one."""
    return [
        None if k.artifact is None else {"file": k.artifact.file.name, **k.artifact.record}
        for k in kernels
    ]


def restored(
    code: Code, number: int, record: dict[str, Any], folder: Path, device: Device
) -> OpEnv:
    """Return kernel ``number`` of a program out of its record; its file is in ``folder``.

    Raises FormatError for a record or a file that is not in good order.
    """
    kernel = code.kernels[number]
    dialect = dialect_of(kernel)
    name = record.get("file")
    if dialect not in DIALECTS or not isinstance(name, str) or name != Path(name).name:
        raise FormatError(f"the record of the kernel {kernel.name} is damaged", found=record)
    rest = {key: value for key, value in record.items() if key != "file"}
    artifact = Artifact(folder / name, rest)
    try:
        made = DIALECTS[dialect].restore(artifact)
    except (ValueError, OSError, RuntimeError) as error:  # of files, and of whoever loads them
        raise FormatError(
            f"the kernel {kernel.name} cannot be loaded: {error}",
            hint="meta.vm.load(folder, rebuild=True) compiles all kernels anew",
        ) from None
    env = OpEnv(made.run, allocates=False, workspace=made.workspace)
    env.artifact = artifact
    if not isinstance(kernel, KernelRef):
        return env
    base = OPERATORS[kernel.operator.rpartition(".")[2]]
    if not kernel.is_static:
        run = ForAllExtents(base, made.run, kernel, device)
        env = OpEnv(run, allocates=True, workspace=made.workspace)
        env.artifact = artifact
        return env
    if base.schema.written:
        call = base.call_values(kernel.args, device)
        env.wrap(partial(counting, places=written_places(call)))
    return env
