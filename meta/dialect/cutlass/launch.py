"""How a kernel is called: what its function takes, of the tensors that a call has.

The function takes matrices x1, x2, the result and the first tile "c", then a tuple of what the
epilogue reads and writes besides, one for the scheduler of tiles and one for groups; what a kernel
does not have is None. It checks dtypes, extents and alignment, so a wrong call is an error.

What a product in groups needs besides: ends of groups as CUTLASS takes them, and zeros in rows
that belong to no group. One small kernel writes both before the product runs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch

from meta.base.dtype import bits
from meta.dialect.core import Launch
from meta.dialect.cuda import cubin
from meta.dialect.cutlass.kernel import ALIGNMENT, FORMS
from meta.runtime import gpu_properties, nvrtc

SWIZZLE = 8
"""Rows of tiles that are computed together, so that they find what they share in the cache."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the tensors of a call become those of a kernel.

    Attributes
    ----------
    form: the epilogue. roles: what each tensor is, the results last: "x1", "x2", a name of the
    form's operands, "offs" (of groups), "out" and "kept". shapes: how the kernel sees each.
    clusters: how many clusters of thread blocks are launched at most. ends: the dtype of offs.
    """

    form: str
    roles: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    clusters: int
    ends: str = ""

    def record(self) -> dict[str, Any]:
        """Return it as data that JSON has."""
        return asdict(self)

    @classmethod
    def read(cls, record: Any) -> Plan:
        """Return the plan of a record; ValueError if it is not in good order."""
        try:
            roles, shapes = tuple(record["roles"]), tuple(map(tuple, record["shapes"]))
            plan = cls(record["form"], roles, shapes, record["clusters"], record["ends"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"the record of a launch is damaged: {error}") from None
        fits = (
            all(isinstance(name, str) for name in (plan.form, *roles))
            and plan.form in FORMS
            and len(roles) == len(shapes) > 2
            and all(type(n) is int for n in (plan.clusters, *(n for s in shapes for n in s)))
            and set(roles) == plan.needed
            and (plan.ends in C_TYPES if "offs" in roles else plan.ends == "")
        )
        if not fits:
            raise ValueError(f"the record of a launch is damaged: {record}")
        return plan

    @property
    def needed(self) -> set[str]:
        """The roles that a call of the form has."""
        of = FORMS[self.form]
        named = {"x1", "x2", "out", *(name for name, _ in of.operands)}
        return named | ({"kept"} if of.kept else set()) | ({"offs"} if self.ends else set())

    @property
    def results(self) -> tuple[int, ...]:
        """The positions of the tensors that are written."""
        return tuple(i for i, role in enumerate(self.roles) if role in ("out", "kept"))


def launcher(function: Callable[..., None], plan: Plan) -> Callable[..., None]:
    """Return a kernel as a function of the tensors of a call; inputs are compact."""
    of, count = FORMS[plan.form], len(plan.roles)
    # The one after the last is None.
    names = [name for name, kind in of.operands if kind != "c"] + ["kept"] * (of.kept or of.paired)
    at = {role: i for i, role in enumerate(plan.roles)}
    if of.paired:  # the only result is what the epilogue writes
        at["kept"] = at.pop("out")
    first = at["x1"]
    x2, out, c = (at.get(role, count) for role in ("x2", "out", "c"))
    # Behind the operands are what products in parts of the inner extent would have.
    besides = (*(at[name] for name in names), count, count)
    scheduler = plan.clusters, None, SWIZZLE, None, None, None
    ends, offs = None, at.get("offs", count)
    if plan.ends:
        ends = Ends(plan.shapes[offs][0], plan.shapes[out], plan.ends)

    def run(*tensors: torch.Tensor) -> None:
        together = 0
        for tensor in tensors:
            together |= tensor.data_ptr()
        if together % ALIGNMENT:
            with_copies(run, tensors, plan.results)
            return
        given: list[Any] = [
            t if t.ndim == len(shape) else t.view(shape)
            for t, shape in zip(tensors, plan.shapes, strict=True)
        ]
        groups = None if ends is None else ends(given[offs], given[out])
        given.append(None)
        epilogue = tuple([given[i] for i in besides])
        function(
            given[first], given[x2], given[out], given[c], epilogue, scheduler, groups, None, None
        )

    return run


def with_copies(
    run: Callable[..., None], tensors: Sequence[torch.Tensor], results: tuple[int, ...]
) -> None:
    """Run a kernel on copies of the tensors that do not begin where it reads and writes."""
    given = [t if t.data_ptr() % ALIGNMENT == 0 else t.clone() for t in tensors]
    run(*given)
    for i in results:
        if given[i] is not tensors[i]:
            tensors[i].copy_(given[i])


THREADS = 256
BLOCKS_PER_PROCESSOR = 2
"""Thread blocks for each multiprocessor."""
C_TYPES = {"int32": "int", "int64": "long long"}
PARAMETERS = struct.Struct("<3Q2iq")
PIECE = 16
"""Bytes that a thread writes at a time."""


def source(dtype: str) -> str:
    """Return the source of the kernel for ends of a dtype."""
    return nvrtc.with_macros(Path(__file__).parent / "ends.cu", {"INDEX": C_TYPES[dtype]})


class Ends:
    """The kernel of a call: a function of the ends of groups and of the result."""

    def __init__(self, groups: int, out: tuple[int, ...], dtype: str) -> None:
        """Prepare for so many groups and a result of this shape, in half precision."""
        self.groups, self.dtype = groups, dtype
        self.rows, self.row = out[0], prod(out[1:]) * bits("float16") // 8 // PIECE

    def __call__(
        self, offs: torch.Tensor, out: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        """Write zeros and return what the product takes of groups."""
        device = out.device.index
        starts = torch.empty(self.groups + 1, dtype=torch.int32, device=out.device)
        at = offs.data_ptr(), starts.data_ptr(), out.data_ptr()
        _kernel(self.dtype, device)(PARAMETERS.pack(*at, self.groups, self.row, self.rows))
        return starts, None, None, None


@cache
def _kernel(dtype: str, device: int) -> Launch:
    grid = BLOCKS_PER_PROCESSOR * gpu_properties.query(device).processors, 1
    return cubin.launch(source(dtype), "ends", device, grid, THREADS, PARAMETERS.size)
