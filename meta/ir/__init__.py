"""Floor 1: programs as data: types, expressions, modules, text. It knows no op's meaning.

Add a node kind in `expr.py`: what is not the kind's meaning follows from its declaration
(`node.py`).

Programs are kept in A-normal form only. Other forms are views, computed when a pass asks for one
and not kept up to date: `DefUse`, definitions and users, and `to_graph`, a block as a directed
acyclic graph with edges of data and, by what each binding reads and writes, of order.
Every binding carries the file and line of the user's code (the first frame outside of `meta`),
which later errors show. Notebooks show a program with types on hover (`to_html`); `to_dot` gives it
to Graphviz.
"""

from meta.ir.builder import BlockBuilder
from meta.ir.expr import (
    BWD,
    CHECKPOINT,
    CLOSED_OVER,
    DERIVATIVE_ATTRS,
    FWD,
    JVP,
    Binding,
    Block,
    Call,
    Constant,
    ConstructorDefinition,
    Function,
    GlobalVar,
    If,
    Literal,
    Module,
    OpNode,
    Tuple,
    TupleGetItem,
    TypeDefinition,
    Var,
)
from meta.ir.node import Effect, Expr, Node, type_of
from meta.ir.operators import OP_RESOLVERS
from meta.ir.parser import parse, parse_function, parse_literal, parse_type
from meta.ir.pictures import to_dot, to_html
from meta.ir.primitives import PRIMITIVES, Primitive
from meta.ir.printer import text
from meta.ir.structural import first_difference, structural_equal, structural_hash
from meta.ir.types import (
    UNKNOWN,
    DataType,
    Dim,
    FuncType,
    RefType,
    SymbolicDim,
    TensorType,
    TupleType,
    Type,
    UnknownDim,
    compatible,
    type_bytes,
)
from meta.ir.verify import verify
from meta.ir.visit import (
    DefUse,
    GraphNode,
    binders,
    bindings,
    free_vars,
    map_atoms,
    operands,
    substitute,
    to_graph,
    with_fresh_vars,
    with_operands,
)

__all__ = [
    "BWD",
    "CHECKPOINT",
    "CLOSED_OVER",
    "DERIVATIVE_ATTRS",
    "FWD",
    "JVP",
    "OP_RESOLVERS",
    "PRIMITIVES",
    "UNKNOWN",
    "Binding",
    "Block",
    "BlockBuilder",
    "Call",
    "Constant",
    "ConstructorDefinition",
    "DataType",
    "DefUse",
    "Dim",
    "Effect",
    "Expr",
    "FuncType",
    "Function",
    "GlobalVar",
    "GraphNode",
    "If",
    "Literal",
    "Module",
    "Node",
    "OpNode",
    "Primitive",
    "RefType",
    "SymbolicDim",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "Type",
    "TypeDefinition",
    "UnknownDim",
    "Var",
    "binders",
    "bindings",
    "compatible",
    "first_difference",
    "free_vars",
    "map_atoms",
    "operands",
    "parse",
    "parse_function",
    "parse_literal",
    "parse_type",
    "structural_equal",
    "structural_hash",
    "substitute",
    "text",
    "to_dot",
    "to_graph",
    "to_html",
    "type_bytes",
    "type_of",
    "verify",
    "with_fresh_vars",
    "with_operands",
]
