"""A program with symbolic dimensions on a GPU, compiled once more for each size that it meets.

Kernels that serve all extents are launched one by one, none of them is a cuDNN or cuBLASLt kernel
with what stands around it, and no CUDA graph replays them: ResNet-50 takes 4 to 12 times as long as
compiled for its batch on an H200, a BERT of one text 25 times. So the sizes that come first have
programs of their own, as many as META_SIZES says; others run on the kernels for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from meta.base import config
from meta.base.device import Device
from meta.base.errors import MetaError
from meta.base.log import LOG
from meta.ir import SymbolicDim
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.calling_convention import DimRange
from meta.vm.compiler.code import Code
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.specialize import extents_of
from meta.vm.run.workspace import Workspace

if TYPE_CHECKING:
    from meta.vm.compiler.recipe import Recipe
    from meta.vm.run.compiled_program import CompiledProgram


def is_sized(code: Code, device: Device) -> bool:
    """Whether programs of sizes pay: on CUDA, where inputs tell all extents of its parameters, of
    which one is symbolic.
    """
    if device.kind != "cuda":
        return False
    told = extents_of(code).keys()
    dims = (d for _, type_ in code.params for d in type_.shape if isinstance(d, SymbolicDim))
    return bool(told) and all(d.symbols() <= told for d in dims)


class SizedPrograms:
    """Programs by the extents that inputs have. They run one at a time, in one memory where it is
    large enough.

    Parameters
    ----------
    program: for all extents, for which `is_sized` holds. recipe: how it is compiled; None if it was
    loaded, with programs of the sizes that were ``saved``. cuda_graph: as of `compile`. ranges:
    that extents have to be in.

    Attributes
    ----------
    found: by extents; None where the program for all is to run.
    """

    def __init__(
        self,
        program: CompiledProgram,
        recipe: Recipe | None,
        cuda_graph: bool | None,
        ranges: Mapping[str, DimRange],
        saved: Sequence[BoundProgram] = (),
    ) -> None:
        self._program, self._recipe, self._cuda_graph = program, recipe, cuda_graph
        self._ranges, self._where = ranges, extents_of(program.code)
        self._axes = [type_.ndim for _, type_ in program.code.params]
        self._workspace = program.workspace
        self._said = False
        self._met: Counter[tuple[int, ...]] = Counter()
        self.found: dict[tuple[int, ...], CompiledProgram | None] = {}
        for bound in saved:
            extents = self.extents([type_.static_shape for _, type_ in bound.code.params])
            assert extents is not None
            self.found[extents] = self._of(bound)

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The extents that have a program of their own, by the names of dimensions."""
        return [dict(zip(self._where, e, strict=True)) for e, own in self.found.items() if own]

    def extents(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
        """Return what shapes of inputs say; None if one has not as many axes as its type."""
        if any(len(shape) != n for shape, n in zip(shapes, self._axes, strict=False)):
            return None
        return tuple([shapes[number][axis] for number, axis in self._where.values()])

    def program(self, extents: tuple[int, ...], patience: int = 0) -> CompiledProgram | None:
        """Return the program for extents that fit; None if there are too many, and until they were
        met more often than ``patience`` says.
        """
        if extents in self.found:
            return self.found[extents]
        if self._met[extents] < patience:
            self._met[extents] += 1
            return None
        named, name = dict(zip(self._where, extents, strict=True)), self._program.convention.name
        if any(named[n] not in range_ for n, range_ in self._ranges.items() if n in named):
            return None
        most = config.get("META_SIZES")
        if self._recipe is None or len(self.found) >= most:
            if not self._said and most > 0:
                self._said = True
                why = (
                    f"META_SIZES={most:d} have programs of their own"
                    if self._recipe is not None
                    else f"it was saved with programs for {self.sizes}"
                )
                LOG.warning(
                    "%s: %s, and other sizes, run on kernels for all sizes, which take several "
                    "times as long: %s", name, named, why,
                )  # fmt: skip
            return None
        own = None
        try:
            own = self._of(self._recipe.of_sizes(named))
        except MetaError as error:
            if self._cuda_graph:
                raise
            LOG.warning("%s has no program of its own for %s: %s", name, named, error)
        self.found[extents] = own
        return own

    def _of(self, bound: BoundProgram) -> CompiledProgram:
        program = self._program
        instructions = [i for f in bound.code.functions.values() for i in f.instructions()]
        sizes = [i.size for i in instructions if isinstance(i, bc.AllocateStorage)]
        fits = sum(sizes) <= self._workspace.size
        workspace = self._workspace if fits else Workspace(program.device)
        workspace.in_order = self._workspace.in_order
        own = type(program)(
            bound,
            program.arrays,
            program.convention,
            cuda_graph=self._cuda_graph,
            workspace=workspace,
        )
        for other in filter(None, self.found.values()):
            own.share_preparation(other)
        self._workspace = workspace
        return own
