"""Programs that hold collectives: all ranks run the same one.

When such a program is linked, or first run if there is no mesh before, the ranks along its axes
agree by hash on its instructions, kernels, constants and graph regions. A difference is an error on
all of them that shows the first line which differs. An error of a collective names its operator and
the line of the user's code that it came from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from meta.base.errors import DistributedError
from meta.base.registry import OPERATORS
from meta.base.source import Span
from meta.ir.constants import tensor_bytes
from meta.runtime.mesh import NO_MESH, RankMesh, current_mesh, digest, require_consistent
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Code, Kernel, KernelRef
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.graphs.capture import Graphs, report
from meta.vm.run.launch_errors import name_site

if TYPE_CHECKING:
    from meta.vm.run.link import Linked

_ATTRS = re.compile(r" attrs\(.*\) \{$")  # how memory is planned follows from what is below
HINT = (
    "ranks trace and compile the same: no value of the rank in the program (meta.distributed."
    "axis_index reads it when it runs), equal shapes, knobs and devices, and kernels that were "
    "measured once for all (META_TUNE=cached)"
)


def with_equal_programs(program: BoundProgram, linked: Linked, graphs: Graphs | None) -> Linked:
    """Return a linked program whose ranks agree on it; itself if it holds no collective."""
    found = list(collectives(program.code))
    if not found:
        return linked
    consistency = _ProgramConsistency(program, found, graphs)
    consistency.link()
    return replace(
        linked,
        run=consistency.within(linked.run),
        fill=None if linked.fill is None else consistency.within(linked.fill),
    )


def collectives(code: Code) -> Iterator[tuple[KernelRef, Span | None]]:
    """Iterate over the collectives of a program among several ranks, with their lines."""
    for function in code.functions.values():
        for i in function.instructions():
            if not isinstance(i, bc.Invoke):
                continue
            kernel = code.kernels[i.kernel]
            op = OPERATORS.get(kernel.base) if isinstance(kernel, KernelRef) else None
            if op is not None and op.collective and slot(kernel, "size") > 1:
                assert isinstance(kernel, KernelRef)
                yield kernel, i.span


def slot(kernel: Kernel, name: str) -> Any:
    """Return an argument of a kernel's call."""
    assert isinstance(kernel, KernelRef)
    return kernel.args[OPERATORS[kernel.base].schema.index[name]]


class _ProgramConsistency:
    """What ranks agree on of one program, and in which world they have."""

    def __init__(
        self,
        program: BoundProgram,
        found: Sequence[tuple[KernelRef, Span | None]],
        graphs: Graphs | None,
    ) -> None:
        self.program = program
        self.axes = {slot(kernel, "over"): slot(kernel, "size") for kernel, _ in found}
        self.first, self.span = found[0]
        self.kernels = list(map(str, program.code.kernels))
        self.graphs = str(report(graphs, "")).splitlines()
        self.constants = [
            hashlib.blake2b(tensor_bytes(c), digest_size=8).hexdigest()
            for c in program.code.constants
            if isinstance(c, torch.Tensor)
        ]
        self.digest = digest("\n".join([str(program.code), *self.constants, *self.graphs]))
        line = "" if self.span is None else f" of {self.span}"
        self.name = f"program {self.digest.hex()[:8]} (first: {self.first.base}{line})"
        self.world = NO_MESH

    def text(self) -> str:
        """Return what differs where the digest does, for a person."""
        lines = [_ATTRS.sub(" {", line) for line in str(self.program.module()).splitlines()]
        lines += [f"constant {i}: bytes of hash {c}" for i, c in enumerate(self.constants)]
        lines += [f"kernel {i}: {kernel}" for i, kernel in enumerate(self.kernels)]
        return "\n".join([*lines, *self.graphs, *str(self.program.code).splitlines()])

    def link(self) -> None:
        """Agree, if the mesh is there."""
        world = current_mesh()
        if all(a in world.groups and world.groups[a].size == n for a, n in self.axes.items()):
            self.agree(world)

    def agree(self, world: RankMesh) -> None:
        """Agree with the other ranks along the program's axes."""
        require_consistent(world, "a program", self.digest, self.text, self.axes, hint=HINT)
        self.world = world

    def within(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs the program with the other ranks."""

        def together(*args: Any, **kwargs: Any) -> Any:
            try:
                with self.running():
                    return run(*args, **kwargs)
            except DistributedError as error:
                if error.op is not None:
                    name_site(error, self.first.base, self.span)
                raise

        return together

    @contextmanager
    def running(self) -> Iterator[None]:
        world = current_mesh()
        groups = [world.group(over, size) for over, size in self.axes.items()]
        if world is not self.world:
            self.agree(world)
        with ExitStack() as stack:
            for group in groups:
                stack.enter_context(group.running(self.name, self.digest))
            try:
                yield
            except BaseException:
                # Nothing goes on writing to the program's memory. What else fails is due to this.
                with suppress(Exception):
                    world.finish_all()
                raise
