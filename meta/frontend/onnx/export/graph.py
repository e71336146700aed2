"""`Graph`: an ONNX graph under construction. Calls of base operators under it become nodes.

It is to programs that leave what a trace is to those that come in: an exporter writes nodes by
`Graph.node`, or calls operators of `meta.op` on its arguments, which are exported in their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from meta.base.call_context import use
from meta.base.dtype import FROM_TORCH, TO_NUMPY, TO_TORCH
from meta.base.errors import IRError
from meta.dialect.core.preference import prefer
from meta.frontend.core import Unconvertible
from meta.frontend.onnx.registry import schema_of
from meta.ir import Call, Dim, SymbolicDim, TensorType, TupleType, Type, Var
from meta.ir.dims import Quotient
from meta.op.core.call import map_tensors
from meta.op.core.op import by_schema
from meta.op.core.tracing import Symbol, Trace
from meta.runtime.ndarray import as_array, ndarray

MOST_FOLDED = 4096
"""Elements that are computed of constants at once."""
SMALL_BYTES = 1024
"""Constants of up to so many bytes are written once where they are equal."""
INTS = ("uint8", "int32", "int64")
WIDER = {
    **dict.fromkeys(("bool", "uint8", "int8", "int16", "uint16"), INTS[1:]),
    "bool": INTS,
    **dict.fromkeys(("int32", "uint32"), ("int64",)),
    **dict.fromkeys(("float16", "bfloat16"), ("float32", "float64")),
}
"""By dtype, those that have all its numbers, in which an operator of ONNX may take them: integers
wrap when they are cast back, and half precision is rounded once."""


@cache
def kind_of(dtype: str) -> int:
    """Return the number of a dtype in `onnx.TensorProto`."""
    return int(helper.np_dtype_to_tensor_dtype(TO_NUMPY[dtype]))


@cache
def _word(dtype: str) -> str:
    """Return a dtype as schemas write it, "tensor(float)"."""
    name = TensorProto.DataType.Name(kind_of(dtype)).lower()
    return f"tensor({name})"


def value_info(name: str, type_: TensorType) -> ValueInfoProto:
    """Return what declares a value: a dimension that has no number is its name, or is open."""
    shape = [d.name if isinstance(d, SymbolicDim) else d for d in type_.shape]
    known = [d if isinstance(d, int | str) else None for d in shape]
    return helper.make_tensor_value_info(name, kind_of(type_.dtype), known)


def tensor_proto(name: str, tensor: torch.Tensor) -> TensorProto:
    """Return a tensor of a file."""
    compact = tensor.detach().cpu().contiguous()
    data = compact.reshape(-1).view(torch.uint8).numpy().tobytes() if compact.numel() else b""
    kind = kind_of(FROM_TORCH[tensor.dtype])
    return TensorProto(name=name, data_type=kind, dims=tuple(tensor.shape), raw_data=data)


class Graph(Trace):
    """The nodes of a graph, or of a block of one that is an attribute of a node.

    Attributes
    ----------
    opset: the version of the operators. export: what writes a call of a base operator: of the
    graph, the operator and its arguments in schema order.
    nodes: what is written so far. constants: by name, all in the outermost graph.
    result: the type of the call that is being written.
    """

    def __init__(self, opset: int, export: Callable[..., Any], outer: Graph | None = None) -> None:
        super().__init__()
        self.opset, self.export, self.outer = opset, export, outer
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, torch.Tensor] = {} if outer is None else outer.constants
        self.names: dict[str, int] = {} if outer is None else outer.names
        self.result: Any = TupleType(())
        self._known: dict[Any, Symbol] = {} if outer is None else outer._known
        self._extents: dict[str, Symbol] = {}
        self._axes: dict[str, tuple[Symbol, int]] = {} if outer is None else outer._axes

    def value(self, name: str, type_: TensorType) -> Symbol:
        """Return a new value of this name, or one like it where that is taken."""
        return Symbol(self, Var(self._unique(name), type_), type_)

    def _unique(self, name: str) -> str:
        found = name
        while found in self.names:
            self.names[name] += 1
            found = f"{name}_{self.names[name]}"
        self.names[found] = 0
        return found

    def input(self, name: str, type_: TensorType) -> Symbol:
        """Return an input of the graph, which says what its named dimensions are."""
        symbol = self.value(name, type_)
        for axis, dim in enumerate(type_.shape):
            if isinstance(dim, SymbolicDim) and dim.name is not None:
                self._axes.setdefault(dim.name, (symbol, axis))
        return symbol

    def lift(self, value: Any) -> Any:
        """Return a value as it is, and of an array the constant: there are no other traces."""
        return value if isinstance(value, Symbol) else self.constant(as_array(value).tensor)

    def constant(self, values: Any, dtype: str | None = None) -> Symbol:
        """Return a tensor, or numbers in a dtype, as an initializer."""
        if not isinstance(values, torch.Tensor):
            assert dtype is not None
            values = torch.tensor(values, dtype=TO_TORCH[dtype])
        key: Any = (values.dtype, tuple(values.shape), id(values))
        if values.nbytes <= SMALL_BYTES:
            key = (*key[:2], tensor_proto("", values).raw_data)
        if key not in self._known:
            type_ = TensorType(key[1], FROM_TORCH[values.dtype])
            self._known[key] = symbol = Symbol(self, Var(self._unique("constant"), type_), type_)
            self.constants[name_of(symbol)] = values
        return self._known[key]

    def numbers(self, x: Symbol) -> torch.Tensor | None:
        """Return the elements of a constant; None of another value."""
        return self.constants.get(name_of(x))

    def emit(self, value: Any, type_: Type) -> Any:
        """Write a call of an operator, made by an exporter."""
        assert isinstance(value, Call)
        args = tuple(map(self._argument, value.args))
        op: Any = value.callee
        names = {name_of(x) for x in _symbols(args)}
        is_small = isinstance(type_, TensorType) and type_.is_static and type_.size <= MOST_FOLDED
        if is_small and names and names <= self.constants.keys():
            with use(None), prefer("torch"):
                given = map_tensors(op, args, lambda x: ndarray(self.constants[name_of(x)].cpu()))
                return self.constant(by_schema(op)(*given).tensor)
        return self.call(op, args, type_)

    def _argument(self, atom: Any) -> Any:
        if isinstance(atom, Var):
            assert isinstance(atom.type, TensorType)
            return Symbol(self, atom, atom.type)
        return tuple(map(self._argument, atom.fields)) if hasattr(atom, "fields") else atom

    def call(self, op: Any, args: tuple[Any, ...], type_: Type) -> Any:
        """Return what stands for the results of an operator; Unconvertible if it has no form here.

        Raises IRError if an exporter gives a value of another type than the operator has.
        """
        around, self.result = self.result, type_
        try:
            found = self.export(self, op, args)
        finally:
            self.result = around
        types = type_.fields if isinstance(type_, TupleType) else (type_,)
        values = found if isinstance(found, tuple) else (found,)
        typed = []
        for x, wanted in zip(values, types, strict=True):
            assert isinstance(wanted, TensorType)
            if x.dtype != wanted.dtype or x.ndim != wanted.ndim:
                raise IRError("its ONNX form has another type", op=op.name, expected=wanted,
                              found=x.type)  # fmt: skip
            typed.append(Symbol(self, Var(name_of(x), wanted), wanted))
        return tuple(typed) if isinstance(type_, TupleType) else typed[0]

    def node(self, operator: str, *inputs: Any, type: Any = None, **attributes: Any) -> Any:
        """Append a node; return its result, or a tuple if there are several.

        inputs: values, numbers, which take the dtype of the values, or None for what is left out.
        type: of the result, a tuple of several; that of the call by default. attributes: without
        those that are None. An input of a dtype that the operator does not take is cast to one
        that has its numbers, and the result back; Unconvertible where there is none.
        """
        schema = schema_of(operator, self.opset)
        if schema is None:
            newer = next((v for v in range(self.opset, 99) if schema_of(operator, v)), None)
            hint = None if newer is None else f"opset={newer}"
            raise Unconvertible(f"opset {self.opset} has no {operator}", hint)
        taken = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        several: Any = type if type is not None else self.result
        types: Any = several.fields if isinstance(several, TupleType) else several
        types = types if isinstance(types, tuple) else (types,)
        formals = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(inputs))]
        own: dict[str, str] = {}
        for formal, x in zip(formals, inputs, strict=True):
            if isinstance(x, Symbol) and formal.is_homogeneous:
                own.setdefault(formal.type_str, str(x.dtype))
        held = {
            word: _accepted_dtype(dtype, taken.get(word, (word,)), operator)
            for word, dtype in own.items()
        }
        dtypes = {**dict.fromkeys(taken, types[0].dtype), **own}
        names = [self._input(x, dtypes.get(f.type_str, "int64"), held.get(f.type_str))
                 for f, x in zip(formals, inputs, strict=True)]  # fmt: skip
        while names and not names[-1]:
            names.pop()
        results, back = [], []
        for i, wanted in enumerate(types):
            word = schema.outputs[min(i, len(schema.outputs) - 1)].type_str
            cast = word in held and wanted.dtype == own[word] != held[word]
            made = self.value(operator.lower(), wanted.with_dtype(held[word]) if cast else wanted)
            results.append(made)
            back.append(cast)
        stated = {n: v for n, v in attributes.items() if v is not None}
        outputs = [name_of(r) for r in results]
        self.nodes.append(helper.make_node(operator, names, outputs, outputs[0], **stated))
        for i, (made, wanted) in enumerate(zip(results, types, strict=True)):
            if back[i]:
                results[i] = self.node("Cast", made, type=wanted, to=kind_of(wanted.dtype))
        return tuple(results) if isinstance(several, tuple | TupleType) else results[0]

    def _input(self, x: Any, dtype: str, held: str | None) -> str:
        """Return the name of an input: a number is of a dtype, and values are cast to ``held``."""
        if x is None:
            return ""
        x = x if isinstance(x, Symbol) else self.constant(x, dtype)
        if held is not None and x.dtype != held:
            x = self.node("Cast", x, type=x.type.with_dtype(held), to=kind_of(held))
        return name_of(x)

    def extents(self, dims: Sequence[Dim]) -> Symbol:
        """Return extents as a vector of int64, computed where they are not numbers.

        Raises Unconvertible for one that only the values of inputs say.
        """
        if all(isinstance(d, int) for d in dims):
            return self.constant(list(dims), "int64")
        parts = [self.constant([d], "int64") if isinstance(d, int) else self._extent(d)
                 for d in dims]  # fmt: skip
        if len(parts) == 1:
            return parts[0]
        type_ = TensorType((len(parts),), "int64")
        found: Symbol = self.node("Concat", *parts, type=type_, axis=0)
        return found

    def _extent(self, dim: Any) -> Symbol:
        """Return a named dimension, a vector of one."""
        if not isinstance(dim, SymbolicDim):
            raise Unconvertible("an extent of it follows from the values of inputs")
        total: Any = None
        for atoms, factor in dim.terms:
            product: Any = None if atoms and factor == 1 else self.constant([factor], "int64")
            for atom in atoms:
                own = self._atom(atom)
                product = own if product is None else product * own
            total = product if total is None else total + product
        found: Symbol = total
        return found

    def _atom(self, atom: Any) -> Any:
        if isinstance(atom, Quotient):
            return self._extent(atom.numerator) // atom.divisor
        if atom not in self._axes:
            raise Unconvertible(f"no input has the dimension {atom!r} by itself")
        if atom not in self._extents:
            x, axis = self._axes[atom]
            type_ = TensorType((1,), "int64")
            self._extents[atom] = self.node("Shape", x, type=type_, start=axis, end=axis + 1)
        return self._extents[atom]

    def proto(self, name: str, inputs: Sequence[Symbol], outputs: Sequence[Symbol]) -> GraphProto:
        """Return the graph without its constants; a value that is no result of its nodes, or
        a result for the second time, is handed on by a node.
        """
        made = {o for node in self.nodes for o in node.output}
        declared = []
        for x in outputs:
            if name_of(x) not in made:
                x = self.node("Identity", x, type=x.type)
            made.discard(name_of(x))
            declared.append(value_info(name_of(x), x.type))
        self.nodes = _used(self.nodes, {d.name for d in declared})
        given = [value_info(name_of(x), x.type) for x in inputs]
        return helper.make_graph(self.nodes, name, given, declared)


def _symbols(value: Any) -> list[Symbol]:
    if isinstance(value, tuple):
        return [x for v in value for x in _symbols(v)]
    return [value] if isinstance(value, Symbol) else []


def name_of(x: Symbol) -> str:
    """Return the name of a value."""
    assert isinstance(x.atom, Var)
    return x.atom.name


def _used(nodes: Sequence[NodeProto], wanted: set[str]) -> list[NodeProto]:
    """Return the nodes of which something is wanted; what they read is wanted, too."""
    found = []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            found.append(node)
            wanted |= read_by(node)
    return found[::-1]


def read_by(node: NodeProto) -> set[str]:
    """Return the names that a node reads, and the graphs in it."""
    inner = [n for a in node.attribute if a.HasField("g") for n in a.g.node]
    outputs = (o.name for a in node.attribute if a.HasField("g") for o in a.g.output)
    return {*node.input, *outputs}.union(*map(read_by, inner))


def _accepted_dtype(dtype: str, taken: Sequence[str], operator: str) -> str:
    """Return in which dtype an operator takes numbers of one."""
    if _word(dtype) in taken:
        return dtype
    if list(taken) == ["tensor(bool)"]:
        return "bool"
    wider = next((w for w in WIDER.get(dtype, ()) if _word(w) in taken), None)
    if operator == "BitwiseNot" and dtype == "bool":
        wider = None  # 1 would become 254, which is true
    if wider is None:
        raise Unconvertible(f"ONNX's {operator} does not take {dtype}")
    return wider
