"""What a compiled module takes and returns, by name: checks of inputs, and the shapes of results.

An input has the name of the parameter of the function that was compiled; where that takes a
container, the path in it is added: ``batch.ids``, ``states.0``. Results have the paths in what the
function returns: ``logits`` of a dict, ``output_0``, ``output_1`` of a tuple; a single one is
``output``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from meta.base.bounded_cache import bounded_insert
from meta.base.device import Device
from meta.base.errors import ArgumentError, DeviceError, MetaError, UnknownName
from meta.base.registry import nearest
from meta.ir import Dim, SymbolicDim, TensorType, TupleType, Type
from meta.ir.dims import Quotient
from meta.ir.names import Names
from meta.op.core import tree
from meta.runtime.array_key import ArrayKey
from meta.runtime.ndarray import as_array, ndarray
from meta.vm.compiler.calling_convention import DimRange
from meta.vm.run.compiled_program import CompiledProgram

Extents = Mapping[str, int]


REMEMBERED = 256
"""Combinations of shapes of inputs that are known to fit."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Names and types of a module's inputs and results.

    Attributes
    ----------
    ranges: of the symbolic dimensions in the types. device: where the tensors are. known: extents
    by the keys of inputs that were found to fit.
    """

    inputs: dict[str, TensorType]
    outputs: dict[str, TensorType]
    ranges: dict[str, DimRange]
    device: Device
    known: dict[tuple[ArrayKey, ...], Extents] = field(default_factory=dict)

    def bound(self, inputs: object) -> tuple[list[ndarray], Extents]:
        """Return inputs in order, and the extents that their shapes give to dimensions.

        Raises ArgumentError, UnknownName or DeviceError, naming the input, for one that is missing,
        superfluous, no tensor, of another device or dtype, or of a shape that does not fit.
        """
        given = in_order(inputs, self.inputs, "input")
        arrays = [
            value if value.__class__ is ndarray else tensor_like(value, "input", name)
            for name, value in zip(self.inputs, given, strict=True)
        ]
        keys = tuple([array.key for array in arrays])
        extents = self.known.get(keys)
        if extents is None:
            extents = self._extents(arrays)
            bounded_insert(self.known, keys, extents, REMEMBERED)
        return arrays, extents

    def _extents(self, arrays: Sequence[ndarray]) -> Extents:
        extents: dict[str, int] = {}
        met: dict[str, str] = {}
        for (name, type_), array in zip(self.inputs.items(), arrays, strict=True):
            require_kind(array, "input", name, type_, self.device)
            for axis, dim in enumerate(type_.shape):
                if isinstance(dim, SymbolicDim) and dim.name is not None:
                    self._bind(dim.name, array.shape[axis], name, axis, extents, met)
        for (name, type_), array in zip(self.inputs.items(), arrays, strict=True):
            for axis, dim in enumerate(type_.shape):
                expected = extent_of(dim, extents)
                if expected is not None and array.shape[axis] != expected:
                    known = f"{dim} = {expected}" if isinstance(dim, SymbolicDim) else dim
                    raise ArgumentError(
                        f"input {name!r} has another extent along axis {axis}",
                        expected=f"{known}, as it is {type_}",
                        found=f"{array.shape[axis]} in shape {array.shape}",
                    )
        return extents

    def _bind(
        self,
        dim: str,
        extent: int,
        name: str,
        axis: int,
        extents: dict[str, int],
        met: dict[str, str],
    ) -> None:
        here = f"axis {axis} of input {name!r}"
        if extents.setdefault(dim, extent) != extent:
            raise ArgumentError(
                f"dimension {dim!r} has two extents",
                expected=f"{extents[dim]}, as {met[dim]}",
                found=f"{extent} along {here}",
            )
        met.setdefault(dim, here)
        range_ = self.ranges.get(dim, DimRange())
        if extent not in range_:
            raise ArgumentError(
                f"input {name!r}: dimension {dim!r}, axis {axis}, is out of range",
                expected=str(range_),
                found=extent,
                hint=f"compile with a wider range: dims={{{dim!r}: (least, largest)}}",
            )

    def maximum_shape(self, output: str | int) -> tuple[int, ...]:
        """Return the largest shape that a result may have, by its name or number.

        Raises UnknownName for a result that there is not, ArgumentError if nothing says how large
        it may become.
        """
        names = list(self.outputs)
        if isinstance(output, str):
            require_known([output], names, "output")
            name = output
        else:
            if type(output) is not int or not -len(names) <= output < len(names):
                raise UnknownName(
                    "this module has no such output", expected=f"one of {names}", found=output
                )
            name = names[output]
        return tuple(self._largest(name, d) for d in self.outputs[name].shape)

    def _largest(self, name: str, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if not isinstance(dim, SymbolicDim) or not dim.symbols() <= self.ranges.keys():
            raise ArgumentError(
                f"output {name!r} may have any size: it depends on the values of the inputs",
                found=self.outputs[name],
                hint="outputs=None allocates what is needed",
            )
        _, most = self._bounds(dim)
        if most is None:
            open_ = sorted(n for n in dim.symbols() if self.ranges[n].largest is None)
            raise ArgumentError(
                f"output {name!r} has no maximum shape, as dimension {open_[0]!r} has no largest "
                "extent",
                found=self.outputs[name],
                hint=f"compile with dims={{{open_[0]!r}: (1, largest)}}",
            )
        return max(most, 0)

    def _bounds(self, dim: SymbolicDim) -> tuple[int | None, int | None]:
        """Return the least and the largest number that a dimension can be; None for no bound."""
        low: int | None = 0
        high: int | None = 0
        for atoms, coefficient in dim.terms:
            least, most = _times((coefficient, coefficient), (1, 1))
            for atom in atoms:
                if isinstance(atom, Quotient):
                    a, b = self._bounds(atom.numerator)
                    inner = tuple(None if n is None else n // atom.divisor for n in (a, b))
                else:
                    inner = self.ranges[atom].least, self.ranges[atom].largest
                least, most = _times((least, most), (inner[0], inner[1]))
            low = None if low is None or least is None else low + least
            high = None if high is None or most is None else high + most
        return low, high


Bounds = tuple["int | None", "int | None"]


def _times(a: Bounds, b: Bounds) -> Bounds:
    """Return the bounds of a product; of an unbounded factor of one sign, or of known factors."""
    if None not in a and None not in b:
        products = [x * y for x in a for y in b if x is not None and y is not None]
        return min(products), max(products)
    for known, other in ((a, b), (b, a)):
        least, most = known
        if least is not None and least == most == 0:
            return 0, 0
        if other[0] is None or other[0] < 0:
            continue  # unbounded below, or of both signs
        if least is not None and least >= 0:
            return least * other[0], None
        if most is not None and most <= 0:
            return None, most * other[0]
    return None, None


def signature_of(executable: CompiledProgram) -> Signature:
    """Return how a program's inputs and results are named."""
    code, convention = executable.code, executable.convention
    count = len(code.params) - len(executable.arrays) - code.prepared
    names = tree.leaf_names(convention.arguments)
    types = [type_ for _, type_ in code.params[:count]]
    results = list(_tensors(code.result))
    if convention.result is tree.LEAF:  # of a program that was no function: only types are known
        paths = [path for path, _ in results]
    else:
        paths = [f"output_{n}" if n[:1].isdigit() else n for n in _paths(convention.result)]
    return Signature(
        dict(zip(_unique(names), types, strict=True)),
        dict(zip(_unique(paths), (t for _, t in results), strict=True)),
        {name: DimRange(least, most) for name, least, most in code.dims},
        executable.device,
    )


def _paths(structure: Any) -> list[str]:
    return tree.leaf_names(structure)


def _tensors(type_: Type, path: str = "output") -> Iterator[tuple[str, TensorType]]:
    if isinstance(type_, TupleType):
        for i, field in enumerate(type_.fields):
            yield from _tensors(field, f"{path}_{i}")
    else:
        assert isinstance(type_, TensorType)
        yield path, type_


def _unique(names: Sequence[str]) -> list[str]:
    """Return names that differ; those that do already are as they are."""
    free = Names()
    found: list[str] = []
    for name in names:
        new = name
        while new in found:
            new = free.unique(name)
        found.append(new)
    return found


def in_order(given: object, names: Sequence[str] | Mapping[str, Any], what: str) -> list[Any]:
    """Return what a list has, or a dict by name, in the order of names; ``what``: for messages."""
    if isinstance(given, Mapping):
        require_known(list(given), list(names), what)
        missing = [name for name in names if name not in given]
        if missing:
            raise ArgumentError(
                f"{what}s are missing", expected=", ".join(names), found=f"no {', '.join(missing)}"
            )
        return [given[name] for name in names]
    if not isinstance(given, list | tuple):
        raise ArgumentError(
            f"{what}s are a list, or a dict by name",
            expected=f"[{', '.join(names)}]",
            found=type(given).__name__,
        )
    if len(given) != len(names):
        raise ArgumentError(
            f"there are not as many {what}s as the module has",
            expected=f"{len(names)}: {', '.join(names)}",
            found=len(given),
        )
    return list(given)


def require_known(given: Sequence[Any], names: Sequence[str], what: str) -> None:
    """Raise UnknownName for a name that there is not."""
    for name in given:
        if name not in names:
            raise UnknownName(
                f"this module has no {what} {name!r}",
                expected=", ".join(names) or f"no {what}",
                hint=nearest(name, names) if names and isinstance(name, str) else None,
            )


def tensor_like(value: object, what: str, name: str) -> ndarray:
    """Return a tensor of any library as an array with its memory; ArgumentError for other values,
    saying ``what`` of which name it is.
    """
    known = isinstance(value, ndarray | torch.Tensor | np.ndarray) or hasattr(value, "__dlpack__")
    if not known:
        raise ArgumentError(
            f"{what} {name!r} is no tensor",
            expected="a torch tensor, an array, or an exporter of DLPack",
            found=type(value).__name__,
        )
    with named(what, name):
        return as_array(value)


@contextmanager
def named(what: str, name: str) -> Iterator[None]:
    """Let an error of a block say which input, output or constant it is about."""
    try:
        yield
    except MetaError as error:
        error.what = f"{what} {name!r}: {error.what}"
        raise


def require_kind(array: ndarray, what: str, name: str, type_: TensorType, device: Device) -> None:
    """Raise DeviceError or ArgumentError for an array of another device, dtype or rank."""
    if array.device != device:
        raise DeviceError(
            f"{what} {name!r} is on another device",
            expected=device,
            found=array.device,
            hint="move it with .to(device=...), or compile for that device",
        )
    if array.dtype != type_.dtype:
        raise ArgumentError(
            f"{what} {name!r} has another dtype",
            expected=f"{type_.dtype}, as it is {type_}",
            found=array.dtype,
            hint="cast it, or compile for that dtype",
        )
    if array.ndim != type_.ndim:
        raise ArgumentError(
            f"{what} {name!r} has another number of axes",
            expected=f"{type_.ndim}, as it is {type_}",
            found=f"{array.ndim} in shape {array.shape}",
        )


def extent_of(dim: Dim, extents: Extents) -> int | None:
    """Return the number that a dimension is; None if extents do not say it."""
    if isinstance(dim, SymbolicDim):
        return dim.evaluate(extents) if dim.symbols() <= extents.keys() else None
    return dim if isinstance(dim, int) else None
