"""What TVM's importer would read as something else without an error, told by torch's own graph: a
program that writes to what it is given, and nodes that come out as other types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from tvm import relax

from meta.frontend.relax.errors import Failure, RelaxError, failed

WRITTEN = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def require_no_writes(program: ExportedProgram) -> None:
    """Raise RelaxError for a program that writes to a buffer or an input: the importer drops it."""
    for spec in program.graph_signature.output_specs:
        if spec.kind in WRITTEN:
            raise RelaxError(
                f"the module writes to {spec.target!r}, which is not supported",
                hint="export it in eval mode, or take and return what it keeps",
            )


def require_torchs_types(program: ExportedProgram, imported: Mapping[Any, Any]) -> None:
    """Raise RelaxError, listing all of them, for nodes whose values have another dtype or shape
    than torch's.

    imported: by node of the graph, what the importer made of it.
    """
    failures = []
    for node in program.graph.nodes:
        wanted, found = node.meta.get("val"), getattr(imported.get(node), "ty", None)
        if not node.users or not isinstance(wanted, torch.Tensor):
            continue
        if isinstance(found, relax.TensorType) and not _fits(found, wanted):
            why = f"the importer gives {found.dtype}{_shape(found)} instead of {_type(wanted)}"
            failures.append(Failure(str(node.target), why, place=node.name))
    if failures:
        raise failed(failures)


def _shape(type_: Any) -> list[Any] | str:
    return list(type_.shape.values) if isinstance(type_.shape, relax.ShapeExpr) else ""


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _fits(found: Any, wanted: torch.Tensor) -> bool:
    """Whether dtype, number of axes, and the extents that both know agree."""
    if str(found.dtype) != str(wanted.dtype).removeprefix("torch."):
        return False
    if not isinstance(found.shape, relax.ShapeExpr):
        return True
    extents = found.shape.values
    return len(extents) == wanted.ndim and all(
        int(a) == b
        for a, b in zip(extents, wanted.shape, strict=True)
        if isinstance(b, int) and isinstance(getattr(a, "value", None), int)
    )
