"""Kernels of saved programs: machine code in a file, and the source text that says how to launch
it. Nothing is compiled.
"""

from __future__ import annotations

from typing import Any

from meta.base.device import Device
from meta.base.errors import MetaError
from meta.dialect.core import Artifact, CompiledKernel, read_artifact
from meta.dialect.template.launcher import Runner, loader
from meta.dialect.template.pieces import Source
from meta.runtime import gpu_properties

_TEXTS = ("target", "title", "function", "call")


def environment(device: Device) -> str:
    """Return what decides whether machine code runs: the architecture."""
    return gpu_properties.query(device.ordinal).arch if device.kind == "cuda" else ""


def restore(artifact: Artifact) -> CompiledKernel:
    """Return the kernel of an artifact; ValueError for a record or a file not in good order."""
    code = read_artifact(artifact, *_TEXTS, "values", "written", "fixed")
    record: dict[str, Any] = artifact.record
    texts = {name: record[name] for name in _TEXTS}
    values, written, fixed = record["values"], record["written"], record["fixed"]
    if not (
        all(isinstance(text, str) for text in texts.values())
        and isinstance(values, list)
        and all(_is_value(value) for value in values)
        and isinstance(written, list)
        and all(type(n) is int and 0 <= n < len(values) and values[n][2] >= 0 for n in written)
        and any(value[2] >= 0 for value in values)
        and (fixed is None or _is_fixed(fixed, values))
    ):
        raise ValueError("a kernel's record is damaged")
    source = Source(
        **texts,
        signature="",
        declaration="",
        config={},
        values=tuple((name, type_, ndim) for name, type_, ndim in values),
        written=tuple(written),
    )
    try:
        key = None if fixed is None else tuple(map(tuple, fixed))
        return CompiledKernel(Runner(source, loader(code), key), artifact)
    except MetaError as error:
        raise ValueError(f"the text of a kernel's record is damaged: {error.what}") from None


def _is_fixed(fixed: object, values: list[Any]) -> bool:
    """Whether these are shapes of these values, none of which is a number."""
    return (
        isinstance(fixed, list)
        and len(fixed) == len(values)
        and all(
            isinstance(shape, list)
            and len(shape) == ndim
            and all(type(extent) is int and extent >= 0 for extent in shape)
            for shape, (_, _, ndim) in zip(fixed, values, strict=True)
        )
    )


def _is_value(value: object) -> bool:
    """Whether this is a name, a type and a number of axes."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and isinstance(value[1], str)
        and type(value[2]) is int
    )
