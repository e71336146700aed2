"""Random Relay programs, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st

from meta.frontend.relay import ast

_PLAIN = ["x", "y", "x1", "x.0", "x.1", "conv1.weight", "input:0", "a/b", "v_1", "_", "1", "é"]
_ODD = ["", "let", "a b", "f(x)", 'say "hi"', "x-malformed-ir", "a//b", "a/*b", "end*/", "%x"]
NAMES = st.sampled_from([*_PLAIN, *_ODD, "nn.relu", "inff"]) | st.text(max_size=6)
OPERATORS = st.sampled_from(["nn.conv2d", "add", "let", "odd name", "float32", "inff", "split"])
DTYPES = st.sampled_from(["float32", "int64", "bool", "bfloat16", "int", "custom[posit]8", "odd"])
DIMS = st.one_of(
    st.integers(0, 2**63 - 1), st.just(ast.AnyDim()), st.builds(ast.SymbolDim, st.text(max_size=3))
)
SCALARS = st.one_of(
    st.floats(width=16).map(lambda v: torch.tensor(v, dtype=torch.float16)),
    st.floats(width=32).map(lambda v: torch.tensor(v, dtype=torch.float32)),
    st.floats(width=32).map(lambda v: torch.tensor(v, dtype=torch.bfloat16)),
    st.floats().map(lambda v: torch.tensor(v, dtype=torch.float64)),
    st.integers(-(2**15), 2**15 - 1).map(lambda v: torch.tensor(v, dtype=torch.int16)),
    st.integers(-(2**31), 2**31 - 1).map(lambda v: torch.tensor(v, dtype=torch.int32)),
    st.integers(-(2**63), 2**63 - 1).map(lambda v: torch.tensor(v, dtype=torch.int64)),
    st.integers(0, 255).map(lambda v: torch.tensor(v, dtype=torch.uint8)),
    st.booleans().map(torch.tensor),
)
TENSORS = SCALARS | st.tuples(SCALARS, st.sampled_from([(2,), (0, 3), (1, 2, 1)])).map(
    lambda pair: pair[0].expand(pair[1]).clone()
)
CONSTANTS = st.one_of(
    TENSORS.map(ast.Constant),
    st.integers(0, 9).map(lambda i: ast.Constant(None, f"meta[relay.Constant][{i}]")),
)
DEVICES = st.integers(0, 3).map(
    lambda i: ast.Opaque(
        "VirtualDevice",
        (
            ("device_type_int", i),
            ("memory_scope", "global"),
            ("target", None),
            ("virtual_device_id", 0),
        ),
    )
)


def types(type_vars: tuple[str, ...] = ()) -> st.SearchStrategy[ast.Type]:
    """Return types in which type parameters may occur."""
    plain = [
        st.builds(ast.TensorType, st.lists(DIMS, max_size=3).map(tuple), DTYPES),
        st.just(ast.UnknownType()),
        st.builds(ast.DataType, st.sampled_from(["List", "float32", "A", "odd name", "ref"])),
    ]
    if type_vars:
        plain.append(st.builds(ast.TypeVar, st.sampled_from(type_vars)))

    def larger(inner: st.SearchStrategy[ast.Type]) -> st.SearchStrategy[ast.Type]:
        several = st.lists(inner, max_size=3).map(tuple)
        return st.one_of(
            st.builds(ast.TupleType, several),
            st.builds(ast.RefType, inner),
            st.builds(ast.FuncType, several, inner),
            st.builds(ast.DataType, st.just("List"), several),
        )

    return st.recursive(st.one_of(plain), larger, max_leaves=6)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(max_size=6),
        DEVICES,
        TENSORS.map(ast.Constant),
        st.builds(ast.GlobalVar, NAMES.filter(bool)),
        st.just(ast.Opaque("Target", (("missing", "meta[Target][3]"),))),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), st.integers(-9, 2**63 - 1), max_size=2),
    ),
    max_leaves=4,
)
ATTRIBUTES = st.dictionaries(NAMES.filter(lambda n: n != "attrs_type_key"), VALUES, max_size=3)

LIST = ast.TypeDefinition(
    "List",
    ("A",),
    (
        ast.ConstructorDefinition(
            "Cons", (ast.TypeVar("A"), ast.DataType("List", (ast.TypeVar("A"),)))
        ),
        ast.ConstructorDefinition("Nil"),
        ast.ConstructorDefinition("odd one", (ast.TypeVar("A"),)),
    ),
)
_NODES = ["call", "call", "call", "tuple", "field", "let", "if", "function", "match"]
_NODES += ["ref", "read", "write", "make", "free"]
_FIELDS = {c.name: len(c.fields) for c in LIST.constructors}


class Builder:
    """Makes expressions from drawn choices: variables in scope, and sharing within a scope."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.variables: list[ast.Var] = []
        self.shared: list[ast.Expr] = []

    def variable(self) -> ast.Var:
        return ast.Var(self.draw(NAMES), self.draw(st.none() | types()))

    def inner(self, depth: int, variables: tuple[ast.Var, ...] = ()) -> ast.Expr:
        """Return an expression in a scope of its own."""
        before = len(self.variables), len(self.shared)
        self.variables += variables
        made = self.expression(depth)
        del self.variables[before[0] :], self.shared[before[1] :]
        return made

    def expression(self, depth: int) -> ast.Expr:
        leaves = ["constant", "global"]
        leaves += ["variable"] * 3 if self.variables else []
        leaves += ["again"] * 3 if self.shared else []
        kind = self.draw(st.sampled_from([*leaves, *_NODES] if depth else leaves))
        made = getattr(self, f"_{kind}")(depth - 1)
        if kind in _NODES and kind != "free":
            made.checked_type = self.draw(st.none() | types())
            self.shared.append(made)
        return made

    def several(self, depth: int) -> tuple[ast.Expr, ...]:
        return tuple(self.expression(depth) for _ in range(self.draw(st.integers(0, 3))))

    def _constant(self, _: int) -> ast.Expr:
        return self.draw(CONSTANTS)

    def _global(self, _: int) -> ast.Expr:
        return ast.GlobalVar(self.draw(NAMES))

    def _variable(self, _: int) -> ast.Expr:
        return self.draw(st.sampled_from(self.variables))

    def _free(self, _: int) -> ast.Expr:
        return self.variable()

    def _again(self, _: int) -> ast.Expr:
        return self.draw(st.sampled_from(self.shared))

    def _call(self, depth: int) -> ast.Expr:
        simple = st.builds(ast.Op, OPERATORS)
        op = self.draw(simple) if self.draw(st.booleans()) else self.expression(depth)
        attrs = self.draw(st.none() | st.builds(ast.Attrs, ATTRIBUTES))
        return ast.Call(op, self.several(depth), attrs)

    def _make(self, depth: int) -> ast.Expr:
        name = self.draw(st.sampled_from(sorted(_FIELDS)))
        args = tuple(self.expression(depth) for _ in range(_FIELDS[name]))
        return ast.Call(ast.Constructor(name, "List"), args)

    def _tuple(self, depth: int) -> ast.Expr:
        return ast.Tuple(self.several(depth))

    def _field(self, depth: int) -> ast.Expr:
        return ast.TupleGetItem(self.expression(depth), self.draw(st.integers(0, 11)))

    def _let(self, depth: int) -> ast.Expr:
        var = self.variable()
        return ast.Let(var, self.inner(depth, (var,)), self.inner(depth, (var,)))

    def _if(self, depth: int) -> ast.Expr:
        return ast.If(self.expression(depth), self.inner(depth), self.inner(depth))

    def _function(self, depth: int) -> ast.Function:
        params = tuple(self.variable() for _ in range(self.draw(st.integers(0, 3))))
        type_params = self.draw(st.sampled_from([(), ("A",), ("B", "odd name")]))
        return ast.Function(
            params,
            self.inner(depth, params),
            self.draw(st.none() | types(type_params)),
            type_params,
            self.draw(ATTRIBUTES),
        )

    def _ref(self, depth: int) -> ast.Expr:
        return ast.RefCreate(self.expression(depth))

    def _read(self, depth: int) -> ast.Expr:
        return ast.RefRead(self.expression(depth))

    def _write(self, depth: int) -> ast.Expr:
        return ast.RefWrite(self.expression(depth), self.expression(depth))

    def _match(self, depth: int) -> ast.Expr:
        value = self.expression(depth)
        clauses = []
        for _ in range(self.draw(st.integers(0, 3))):
            variables: list[ast.Var] = []
            pattern = self._pattern(2, variables)
            clauses.append(ast.Clause(pattern, self.inner(depth, tuple(variables))))
        return ast.Match(value, tuple(clauses), self.draw(st.booleans()))

    def _pattern(self, depth: int, variables: list[ast.Var]) -> ast.Pattern:
        kind = self.draw(st.integers(0, 3 if depth else 1))
        if kind == 0:
            return ast.PatternWildcard()
        if kind == 1:
            variables.append(self.variable())
            return ast.PatternVar(variables[-1])
        if kind == 2:
            name = self.draw(st.sampled_from(sorted(_FIELDS)))
            inner = tuple(self._pattern(depth - 1, variables) for _ in range(_FIELDS[name]))
            return ast.PatternConstructor(ast.Constructor(name, "List"), inner)
        count = self.draw(st.integers(0, 3))
        return ast.PatternTuple(tuple(self._pattern(depth - 1, variables) for _ in range(count)))

    def module(self) -> ast.Module:
        names = self.draw(st.lists(NAMES, min_size=1, max_size=2, unique=True))
        functions = {}
        for name in names:
            self.variables, self.shared = [], []
            function = self._function(self.draw(st.integers(0, 4)))
            function.attrs = {
                k: v for k, v in function.attrs.items() if not isinstance(v, ast.Expr)
            }
            functions[name] = function
        extern = ast.TypeDefinition("odd name", ("B",), extern=True)
        return ast.Module(
            functions,
            {"List": LIST, "odd name": extern},
            self.draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=1)),
            self.draw(st.none() | st.just((0, 15))),
        )


@st.composite
def modules(draw: Callable[[st.SearchStrategy[Any]], Any]) -> ast.Module:
    """Return random modules."""
    return Builder(draw).module()
