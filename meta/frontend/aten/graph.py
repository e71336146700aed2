"""Walks a graph of torch.fx whose nodes call ATen, and calls the converters.

Such graphs come from torch.export and from AOTAutograd, functional: nothing in them is written to.
They are walked under a trace or, with arrays, eagerly. What comes out is checked against the types
that torch has written beside each node, so that a converter that misreads an argument is an error
and not another number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._prims_common import is_contiguous_or_false
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils._pytree import tree_leaves

from meta import op
from meta.base.call_context import current
from meta.base.dtype import FROM_TORCH
from meta.base.errors import ArgumentError, MetaError, TypeInferError
from meta.base.progress import bar
from meta.frontend.aten.arguments import as_tensor, complex_dtype, device_of, is_number, of_number
from meta.frontend.aten.control_flow import converter_of
from meta.frontend.aten.registry import AtenError, aten, bind_arguments, is_operand, name_of
from meta.frontend.aten.symint_arithmetic import evaluate
from meta.frontend.core import CallSite, Failure, Unconvertible, active_trace, conversion_error
from meta.ir.types import TensorType
from meta.op.core.op import NOT_COMPLEX
from meta.op.core.tracing import Trace
from meta.runtime.ndarray import array

CHECKS = {
    "_assert_async",
    "_assert_async.msg",
    "_assert_scalar",
    "_assert_tensor_metadata",
    "_linalg_check_errors",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
}
"""Overloads that check what the types say already, or an operator here by itself."""

STRIDED = {
    *("as_strided", "as_strided_copy", "as_strided_scatter"),
    *("sym_stride", "sym_stride.int", "stride", "stride.int"),
    *("sym_storage_offset", "storage_offset"),
    *("is_contiguous", "sym_is_contiguous", "is_contiguous.memory_format"),
    *("_linalg_det", "_linalg_slogdet"),
}
"""Overloads that ask how their first argument lies in memory; the factors that determinants come
with are those of the transposed matrix if that is by rows.
"""

MIXED_DTYPES = {
    "_batch_norm_with_update_functional",
    "_fused_rms_norm_backward",
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "native_batch_norm",
    "native_batch_norm_backward",
    "native_group_norm",
    "native_group_norm_backward",
    "native_layer_norm",
    "native_layer_norm_backward",
}
"""Overloads of data and parameters that may differ in dtype, where the results of torch's kernels
may have another dtype than stands beside the node. What follows was made for the latter.
"""

WRONG_FAKE_SHAPES = {
    **dict.fromkeys(
        ("_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive"), "2.12"
    ),
    "lstm.input": "2.13",
}
"""Overloads whose results torch states wrongly before this version: the dtype of places and counts,
which is int64; the shape of an LSTM's states, if sequences come first. What follows in a program
was made for something else, but for its end.
"""

ConverterFallback = Callable[[fx.Node, tuple[Any, ...], dict[str, Any], Unconvertible], Any]


def _calls(module: fx.GraphModule) -> list[fx.Node]:
    """Return the calls of a graph, and of functions that it calls."""
    graphs = [m.graph for m in module.modules() if isinstance(m, fx.GraphModule)]
    return [n for graph in graphs for n in graph.nodes if n.op == "call_function"]


def unsupported(module: fx.GraphModule) -> list[Failure]:
    """Return a failure for each call of an overload that is not converted, in functions that the
    graph calls too.
    """
    failures = []
    for node in _calls(module):
        target, name = node.target, target_name(node.target)
        try:
            if isinstance(target, torch._ops.HigherOrderOperator):
                converter_of(target)
            elif isinstance(target, torch._ops.OpOverload) and name not in CHECKS:
                aten.require(name, {})
        except Unconvertible as error:
            failures.append(Failure(name, error.why, error.hint, node.name))
    return failures


def missing_converters(module: fx.GraphModule) -> set[torch._ops.OpOverload]:
    """Return the overloads in a graph, and in functions that it calls, that nobody has written a
    converter for; not those that are refused for a reason.
    """
    targets = {n.target for n in _calls(module)}
    overloads = (t for t in targets if isinstance(t, torch._ops.OpOverload))
    return {t for t in overloads if name_of(t) not in CHECKS and name_of(t) not in aten}


class Walker:
    """Converts one `torch.fx.GraphModule`.

    outside: what is called for an overload that has no converter or whose converter declines, with
        the node, its arguments and its keyword arguments, arrays and symbols as they are, and why;
        the default collects failures, so that one error lists all of them.
    training: what a converter is told of the mode (`CallSite.training`).
    """

    def __init__(
        self,
        module: fx.GraphModule,
        *,
        outside: ConverterFallback | None = None,
        training: bool = False,
    ) -> None:
        self.module, self.outside, self.training = module, outside, training
        self.failures: list[Failure] = []
        self.values: dict[fx.Node, Any] = {}  # of the last walk
        self.unneeded: Collection[fx.Node] = ()  # nodes that it leaves out
        self._constants: dict[str, Any] = {}

    def __call__(self, *inputs: Any) -> Any:
        """Return the graph's outputs, of the structure that its output node has.

        Raises AtenError, listing them, for calls that are not converted.
        """
        result = self._walk(inputs)
        if self.failures:
            raise conversion_error(self.failures, AtenError)
        return result

    def _walk(self, inputs: Sequence[Any]) -> Any:
        values = self.values = {}
        given, nodes = iter(inputs), self.module.graph.nodes
        with bar(len(nodes), "converting", delay=1.0) as progress:
            for node in nodes:
                if node in self.unneeded:
                    values[node] = None
                elif node.op == "placeholder":
                    values[node] = next(given)
                elif node.op == "get_attr":
                    values[node] = self._constant(str(node.target))
                elif node.op == "call_function":
                    values[node] = self._call(node, values)
                elif node.op == "output":
                    result = fx.map_arg(node.args[0], values.__getitem__)
                else:
                    raise AtenError(f"a graph of ATen has no node {node.op!r}", found=node.name)
                progress.update()
        return result

    def _constant(self, name: str) -> Any:
        """Return a tensor that the module keeps, as an array on the program's device; a module, as
        the walker of its graph.
        """
        if name not in self._constants:
            found = operator.attrgetter(name)(self.module)
            if isinstance(found, fx.GraphModule):
                self._constants[name] = self._inner(found)
            else:
                self._constants[name] = array(found.detach(), device=device_of())
        return self._constants[name]

    def _inner(self, module: fx.GraphModule) -> Walker:
        """Return the walker of a function that the graph calls."""
        inner = Walker(module, outside=self.outside, training=self.training)
        inner.failures = self.failures
        return inner

    def function(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the outputs as a tuple; what an operator that takes functions calls."""
        result = self._walk(inputs)
        return tuple(result) if isinstance(result, tuple | list) else (result,)

    def _call(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        args: Any = fx.map_arg(node.args, values.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, values.__getitem__)
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if name_of(target) not in CHECKS:
                return self._overload(node, target, args, kwargs)
            if args and args[0] is False:
                raise ArgumentError("the program is not for these inputs", found=args[-1])
            return None
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._higher_order(node, target, args, kwargs)
        # Arithmetic of extents: operator.mul, math.floor, torch.sym_max; and of tuples.
        assert callable(target)
        return evaluate(target, args, kwargs)

    def _overload(
        self, node: fx.Node, overload: torch._ops.OpOverload, args: Any, kwargs: Any
    ) -> Any:
        def run() -> Any:
            if name_of(overload) in STRIDED:
                _require_compact(node.args[0])
            type_, results = self.result_type(node), _count_read(node)
            return convert(
                overload, args, kwargs, training=self.training, result_type=type_, results=results
            )

        return self._checked(node, args, kwargs, run)

    def result_type(self, _node: fx.Node) -> TensorType | None:
        """Return the type of a call's result that torch's guards make sure of; None if unknown."""
        return None

    def _higher_order(
        self, node: fx.Node, target: torch._ops.HigherOrderOperator, args: Any, kwargs: Any
    ) -> Any:
        functions = [a.function if isinstance(a, Walker) else a for a in args]
        return self._checked(node, args, kwargs, lambda: converter_of(target)(*functions, **kwargs))

    def _checked(self, node: fx.Node, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """Return the result of a converter that is of the type that torch says."""
        try:
            result = run()
            if target_name(node.target) in MIXED_DTYPES and "val" in node.meta:
                result = tuple(map(_as_fake, node.meta["val"], result))
            wrong = _mismatch(_fake_results(node), result)
            if wrong is not None:
                right = WRONG_FAKE_SHAPES.get(target_name(node.target))
                hint = None if right is None else f"PyTorch says so by mistake before {right}"
                raise Unconvertible(wrong, hint)
            return result
        except Unconvertible as error:
            if self.outside is not None:
                return self.outside(node, args, kwargs, error)
            failure = Failure(target_name(node.target), error.why, error.hint, node.name)
            self.failures.append(failure)
            return self._stand_in(node.meta.get("val"))
        except MetaError as error:
            error.note(f"converting {node.format_node()}")
            raise

    def _stand_in(self, val: Any) -> Any:
        """Return a value of a type for a program that will not run, so that walking goes on."""
        if isinstance(val, tuple | list):
            return tuple(map(self._stand_in, val))
        known = isinstance(val, torch.Tensor) and val.dtype in FROM_TORCH
        if not known or not isinstance(current(), Trace):
            raise conversion_error(self.failures, AtenError)
        shape = tuple(d if isinstance(d, int) else d.node.hint or 2 for d in val.shape)
        type_ = TensorType(shape, FROM_TORCH[val.dtype])
        return active_trace().parameter(type_, "unsupported")[1]


def is_compact(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are known to be in row-major order, from the beginning of its
    memory.
    """
    return is_contiguous_or_false(tensor) and guard_or_false(tensor.storage_offset() == 0)


def _require_compact(node: Any) -> None:
    if not is_compact(node.meta["val"]):
        raise Unconvertible("its tensor does not lie in memory as its shape says")


def convert(
    overload: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    training: bool = False,
    result_type: TensorType | None = None,
    results: int | None = None,
) -> Any:
    """Return what a call of an overload becomes, of arrays or symbols. results: up to the last one
    that is read; None: all are.

    Raises Unconvertible for one that is not converted.
    """
    operands, attributes = bind_arguments(overload, args, kwargs)
    operands = _with_tensors(overload, operands)
    site = CallSite(
        name_of(overload),
        given=frozenset(attributes),
        training=training,
        device=device_of(*operands),
        result_type=result_type,
        results=len(overload._schema.returns) if results is None else results,
    )
    try:
        return aten.apply(site, operands, attributes)
    except TypeInferError as error:
        # Which operators take complex numbers is theirs to know, not of each converter.
        if error.what != NOT_COMPLEX:
            raise
        what = complex_dtype(operands) or "complex numbers"
        raise Unconvertible(f"{error.op!r} does not take {what}", error.hint) from error


def _with_tensors(overload: torch._ops.OpOverload, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the operands of a call; numbers that all its tensors are, as 0-d tensors: torch takes
    them, as in ``torch.div(7, 2, rounding_mode="trunc")``, and converters need one tensor.
    """
    named = [a for a in overload._schema.arguments if is_operand(a)]
    numbers = [
        str(a.type) == "Tensor" and is_number(x) for a, x in zip(named, operands, strict=True)
    ]
    if not any(numbers) or any(x is not None and not is_number(x) for x in tree_leaves(operands)):
        return operands
    device = device_of()
    return tuple(
        as_tensor(x, FROM_TORCH[of_number(x)], str(device)) if tensor else x
        for x, tensor in zip(operands, numbers, strict=True)
    )


def target_name(target: Any) -> str:
    """Return the name of an operator for errors."""
    return name_of(target) if isinstance(target, torch._ops.OpOverload) else str(target)


def _as_fake(said: Any, found: Any) -> Any:
    """Return a result in the dtype that stands beside the node."""
    if not isinstance(said, torch.Tensor) or found is None:
        return found
    dtype = FROM_TORCH[said.dtype]
    return found if found.dtype == dtype else op.astype(found, dtype)


def _count_read(node: fx.Node) -> int | None:
    """Return how many results of a call there are up to the last that something reads; None where
    all may be read.
    """
    fields: list[Any] = [u.args[1] for u in node.users if u.target is operator.getitem]
    return 1 + max(fields) if fields and len(fields) == len(node.users) else None


def _fake_results(node: fx.Node) -> Any:
    """Return the types that stand beside a node, None for results that nothing reads: what is kept
    for a gradient is another thing on each device, and a program runs on any. Of
    `WRONG_FAKE_SHAPES` ones also None for results that are returned alone.
    """
    said = node.meta.get("val")
    parts = all(user.target is operator.getitem for user in node.users)
    if not isinstance(said, tuple | list) or not parts:
        return said
    ends = {"output"} if target_name(node.target) in WRONG_FAKE_SHAPES else set()
    read = {user.args[1] for user in node.users if any(u.op not in ends for u in user.users)}
    return tuple(s if i in read else None for i, s in enumerate(said))


def _mismatch(wanted: Any, found: Any) -> str | None:
    """Return how a result differs from torch's in number, dtype or known extents, else None."""
    if isinstance(wanted, tuple | list):
        if not isinstance(found, tuple | list) or len(found) != len(wanted):
            count = len(found) if isinstance(found, tuple | list) else 1
            return f"its converter gives {count} results instead of {len(wanted)}"
        pairs = zip(wanted, found, strict=True)
        return next((w for a, b in pairs if (w := _mismatch(a, b)) is not None), None)
    if not isinstance(wanted, torch.Tensor) or found is None:
        return None
    dtype, shape = FROM_TORCH.get(wanted.dtype), tuple(wanted.shape)
    own = tuple(found.shape)
    same = len(own) == len(shape) and all(
        a == b for a, b in zip(own, shape, strict=True) if type(a) is int and type(b) is int
    )
    if same and dtype == found.dtype:
        return None
    ours, theirs = f"{found.dtype}{list(own)}", f"{dtype}{list(shape)}"
    return f"its converter gives {ours} instead of {theirs}"
