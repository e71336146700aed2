"""Floor 1: programs as data: types, expressions, modules, text. It knows no op's meaning.

Add a node kind in `expr.py`, whose docstring lists the files that need a case for it.
"""

from meta.ir.builder import BlockBuilder
from meta.ir.control_flow import ControlFlow
from meta.ir.def_use import DefUse
from meta.ir.dot import to_dot
from meta.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Literal,
    Module,
    Node,
    Op,
    Tuple,
    TupleGetItem,
    Var,
)
from meta.ir.graph import Graph, GraphNode, from_graph, to_graph
from meta.ir.html import to_html
from meta.ir.json_reader import from_json
from meta.ir.json_writer import to_json
from meta.ir.liveness import Liveness
from meta.ir.operators import OP_RESOLVERS
from meta.ir.parser import parse, parse_function, parse_literal, parse_type
from meta.ir.printer import text
from meta.ir.structural import first_difference, structural_equal, structural_hash
from meta.ir.typeof import compatible, type_of
from meta.ir.types import (
    UNKNOWN,
    Dim,
    FuncType,
    SymbolicDim,
    TensorType,
    TupleType,
    Type,
    UnknownDim,
)
from meta.ir.verify import verify
from meta.ir.visit import (
    binders,
    bindings,
    free_vars,
    map_atoms,
    operands,
    substitute,
    with_fresh_vars,
)

__all__ = [
    "OP_RESOLVERS",
    "UNKNOWN",
    "Binding",
    "Block",
    "BlockBuilder",
    "Call",
    "Constant",
    "ControlFlow",
    "DefUse",
    "Dim",
    "Expr",
    "FuncType",
    "Function",
    "GlobalVar",
    "Graph",
    "GraphNode",
    "If",
    "Literal",
    "Liveness",
    "Module",
    "Node",
    "Op",
    "SymbolicDim",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "Type",
    "UnknownDim",
    "Var",
    "binders",
    "bindings",
    "compatible",
    "first_difference",
    "free_vars",
    "from_graph",
    "from_json",
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
    "to_json",
    "type_of",
    "verify",
    "with_fresh_vars",
]
