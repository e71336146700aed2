"""`TorchProgram`: an exported program with what a call of it means: where its arguments come from,
which inputs it accepts, and what its outputs are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from meta import op
from meta.base.dtype import FROM_TORCH
from meta.base.errors import ArgumentError
from meta.frontend.aten.graph import Walker, target_name, unsupported
from meta.frontend.aten.registry import AtenError
from meta.frontend.core import Failure, active_trace, conversion_error
from meta.frontend.core.memory_order import Order, inverse
from meta.frontend.torch import running_statistics
from meta.frontend.torch.containers import flatten
from meta.frontend.torch.export import ExportedModule
from meta.ir.dims import SymbolicDim
from meta.op.core import tree
from meta.runtime.ndarray import array, ndarray

NO_ORDERS: Mapping[str | int, Order] = MappingProxyType({})


@dataclass(frozen=True)
class Output:
    """What becomes of an output of the graph: it is a result, or the new value of an array."""

    written: str | None = None


class _Walker(Walker):
    """Walks a program that may be differentiated afterwards, unlike AOTAutograd's."""

    updating: Collection[fx.Node] = ()

    def _overload(
        self, node: fx.Node, overload: torch._ops.OpOverload, args: Any, kwargs: Any
    ) -> Any:
        if node in self.updating:
            return running_statistics.update(node, args)
        if overload is torch.ops.aten.detach.default:
            return op.detach(args[0])
        return super()._overload(node, overload, args, kwargs)

    def _inner(self, module: fx.GraphModule) -> Walker:
        inner = _Walker(module, outside=self.outside, training=self.training)
        inner.failures = self.failures
        return inner


class TorchProgram:
    """An exported program. Copies of a model have it in common.

    Attributes
    ----------
    exported: how it is called, in torch's terms. state: the names of parameters and buffers, by
    placeholder; of buffers that are not saved, only those that the program writes to.
    constants: other tensors by placeholder. written: the names of the buffers that it writes to.
    """

    def __init__(self, exported: ExportedModule) -> None:
        self.exported = exported
        program = exported.program
        signature = program.graph_signature
        self.module: fx.GraphModule = program.graph_module
        self.placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
        self.outputs = [self._output(s) for s in signature.output_specs]
        self.written = {o.written for o in self.outputs if o.written is not None}
        self.state: dict[str, str] = {}
        self.constants: dict[str, torch.Tensor] = {}
        for spec, node in zip(signature.input_specs, self.placeholders, strict=True):
            saved = spec.kind is InputKind.PARAMETER or spec.persistent
            if spec.target is None:
                continue
            if saved or spec.target in self.written:
                self.state[node.name] = spec.target
            elif isinstance(program.constants.get(spec.target), torch.Tensor):
                self.constants[node.name] = program.constants[spec.target]
            else:
                raise AtenError(
                    f"the module uses {spec.target!r}, which is no tensor", found=spec.kind.name
                )
        self.inputs = {
            node.name: spec.arg
            for spec, node in zip(signature.input_specs, self.placeholders, strict=True)
        }
        self._arrays: dict[tuple[str, str], ndarray] = {}
        self._updating = self._updating_norms()

    def _updating_norms(self) -> set[fx.Node]:
        """Return the normalisations that write their running statistics in place."""
        values: Any = self.module.graph.output_node().args[0]
        outputs = zip(values, self.outputs, strict=True)
        written = {(v, o.written) for v, o in outputs if o.written is not None}
        shared = Counter(id(t) for t in self.tensors().values())
        own = {n: t for n, t in self.tensors().items() if shared[id(t)] == 1}
        buffers = {
            node: self.state[node.name]
            for node in self.placeholders
            if self.state.get(node.name) in self.written and self.state[node.name] in own
        }
        return running_statistics.updating_norms(self.module.graph, buffers, written)

    def _output(self, spec: Any) -> Output:
        if spec.kind is OutputKind.USER_OUTPUT:
            return Output()
        if spec.kind is OutputKind.BUFFER_MUTATION:
            return Output(spec.target)
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            raise AtenError(
                f"the module writes to its input {spec.target!r}, which is not supported",
                hint="write to a copy of it, x.clone(), and return what the caller needs",
            )
        raise AtenError(
            "the program has effects, such as an assertion or what it prints",
            found=f"an output that is {spec.kind.name}",
            hint="leave them out of the module",
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers by name."""
        program = self.exported.program
        found = {**program.constants, **program.state_dict}
        return {name: found[name] for name in self.state.values()}

    def operators(self) -> Counter[str]:
        """Return how often each operator is called, in functions that the program calls too."""
        graphs = [m.graph for m in self.module.modules() if isinstance(m, fx.GraphModule)]
        calls = [n.target for graph in graphs for n in graph.nodes if n.op == "call_function"]
        operators = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
        return Counter(target_name(target) for target in calls if isinstance(target, operators))

    def unsupported(self) -> list[Failure]:
        """Return a failure for each call that is not converted."""
        return unsupported(self.module)

    def require_supported(self) -> None:
        """Raise AtenError listing every call that is not converted."""
        failures = self.unsupported()
        if failures:
            raise conversion_error(failures, AtenError)

    def __call__(
        self,
        arrays: dict[str, Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        training: bool,
        orders: Mapping[str | int, Order] = NO_ORDERS,
    ) -> Any:
        """Convert the program under the trace in force; set what it writes to in ``arrays``.

        orders: the order of axes of arrays whose axes are not in their own, by name, and of leaves
        of the inputs, by number.
        """
        trace = active_trace()
        leaves = enumerate(self._leaves(args, kwargs))
        given = (_in_own_order(value, orders.get(i)) for i, value in leaves)
        extents = Extents(self.exported.program.range_constraints)
        values: list[Any] = []
        lifted: dict[str, Any] = {}
        for node in self.placeholders:
            if node.name in self.state:
                name = self.state[node.name]
                lifted[name] = trace.lift(arrays[name])
                values.append(_in_own_order(lifted[name], orders.get(name)))
            elif node.name in self.constants:
                values.append(self._constant(node.name, str(trace.device)))
            else:
                values.append(self._input(node, next(given), extents))
        extents.check()
        walker = _Walker(self.module, training=training)
        walker.updating = self._updating
        found = walker(*values)
        results = []
        for output, value in zip(self.outputs, found, strict=True):
            if output.written is None:
                results.append(value)
            elif value is not lifted.get(output.written):  # else it is written already
                order = orders.get(output.written)
                value = value if order is None else op.permute_dims(value, order)
                arrays[output.written] = trace.lift(value)
        return self.exported.result(results)

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return what the placeholders of inputs are given; ArgumentError for another structure."""
        given, objects = flatten((tuple(args), dict(kwargs)))
        leaves, structure = pytree.tree_flatten(given)
        wanted = self.exported.program.call_spec.in_spec
        same = list(map(tree.fingerprint, objects))
        if structure != wanted or same != list(map(tree.fingerprint, self.exported.objects)):
            raise ArgumentError(
                "the inputs have another structure than the example inputs",
                expected=_structure_text(wanted, self.exported.objects),
                found=_structure_text(structure, objects),
            )
        return leaves

    def _constant(self, name: str, device: str) -> ndarray:
        if (name, device) not in self._arrays:
            self._arrays[name, device] = array(self.constants[name].detach(), device=device)
        return self._arrays[name, device]

    def _input(self, node: fx.Node, value: Any, extents: Extents) -> Any:
        """Return what a placeholder stands for; ArgumentError if the program is not for it."""
        name, wanted = node.name, self.inputs[node.name]
        if isinstance(wanted, ConstantArgument):
            same = type(value) is type(wanted.value) and value == wanted.value
            if not same:
                raise ArgumentError(
                    f"the program is exported for one value of the input {name!r}",
                    expected=repr(wanted.value),
                    found=repr(value),
                    hint="import the module with this value, or make it a tensor",
                )
            return value
        said = node.meta["val"]
        if not isinstance(said, torch.Tensor):
            extents.meet(f"the input {name!r}", said, value)
            return value
        dtype = FROM_TORCH.get(said.dtype)
        found = getattr(value, "dtype", type(value).__name__)
        if found != dtype:
            raise ArgumentError(
                f"the input {name!r} has another dtype than the example",
                expected=dtype,
                found=found,
                hint=f"x.astype({str(dtype)!r})",
            )
        if len(value.shape) != said.ndim:
            raise extents.wrong(name, said.shape, value.shape)
        for axis, (extent, own) in enumerate(zip(said.shape, value.shape, strict=True)):
            if not extents.meet(f"axis {axis} of the input {name!r}", extent, own):
                raise extents.wrong(name, said.shape, value.shape)
        return value


def _in_own_order(value: Any, order: Order | None) -> Any:
    """Return a value, the axes of which come in an order, with its axes in their own."""
    return value if order is None else op.permute_dims(value, inverse(order))


def _structure_text(structure: pytree.TreeSpec, objects: Sequence[Any]) -> str:
    return " with ".join([str(structure), *map(tree.text, objects)])


# Which extents the inputs of an exported program may have: numbers, names with a range, and what
# is computed of names.


class Extents:
    """The extents that a call's inputs have, by the names that torch.export gave them.

    ranges: the least and the largest of each, as torch states them.
    """

    def __init__(self, ranges: Mapping[Any, Any]) -> None:
        self.ranges = ranges
        self.values: dict[Any, Any] = {}
        self._places: dict[Any, str] = {}
        self._computed: list[tuple[str, Any, Any]] = []

    def meet(self, place: str, wanted: int | torch.SymInt, found: Any) -> bool:
        """Take an extent of an input, or a number that is one; return whether it may be."""
        if isinstance(wanted, int):
            return isinstance(found, int) and found == wanted
        expression = wanted.node.expr
        if not expression.is_Symbol:  # of sympy
            self._computed.append((place, expression, found))
            return True
        if self.values.setdefault(expression, found) != found:
            raise ArgumentError(
                f"{place} and {self._places[expression]} are one extent",
                expected=self.values[expression],
                found=found,
            )
        self._places.setdefault(expression, place)
        return True

    def check(self) -> None:
        """Raise ArgumentError for extents that the program was not exported for."""
        for place, expression, found in self._computed:
            known = [self.values.get(s) for s in expression.free_symbols]
            if not all(isinstance(v, int) for v in (*known, found)):
                raise ArgumentError(
                    f"{place} is computed of others, {expression}",
                    expected="inputs whose extents are numbers",
                    found=found,
                )
            wanted = int(expression.xreplace(self.values))
            if wanted != found:
                raise ArgumentError(f"{place} is {expression}", expected=wanted, found=found)
        for name, value in self.values.items():
            range_ = self.ranges.get(name)
            if range_ is None or isinstance(value, SymbolicDim):
                continue
            # As torch does: 0 and 1 are left out of ranges to keep programs general, not as wrong.
            small = value < range_.lower and range_.lower > 2
            if small or value > range_.upper:
                raise ArgumentError(
                    f"{self._places[name]} is out of the range that the program is exported for",
                    expected=f"{range_.lower} to {range_.upper}",
                    found=value,
                    hint="state a wider range in dynamic_shapes",
                )

    def wrong(self, name: str, wanted: Sequence[Any], found: Sequence[Any]) -> ArgumentError:
        """Return the error for an input of another shape."""
        return ArgumentError(
            f"the input {name!r} has the shape {list(found)}, which the program is not for",
            expected=str(list(wanted)),
            hint="say by dynamic_shapes which extents may vary",
        )
