"""Whether two types are the same, up to the names of type parameters. Used by `equal`."""

from __future__ import annotations

from dataclasses import dataclass, field

from meta.frontend.relay import ast


@dataclass
class TypeNames:
    """Which type parameter of one program is which of the other."""

    there: dict[str, str] = field(default_factory=dict)
    back: dict[str, str] = field(default_factory=dict)

    def bind(self, a: tuple[str, ...], b: tuple[str, ...], names: bool) -> bool:
        """Note which names belong together; return whether they can."""
        if len(a) != len(b) or (names and a != b):
            return False
        self.there.update(zip(a, b, strict=True))
        self.back.update(zip(b, a, strict=True))
        return True

    def same(self, a: str, b: str) -> bool:
        """Tell whether two names mean the same parameter."""
        return self.there.get(a, a) == b and self.back.get(b, b) == a


def same_type(a: ast.Type | None, b: ast.Type | None, bound: TypeNames, names: bool) -> bool:
    """Tell whether two types are the same. A type that is not known is one that is not stated."""
    work: list[tuple[ast.Type | None, ast.Type | None]] = [(a, b)]
    while work:
        x, y = work.pop()
        if isinstance(x, ast.UnknownType | None) and isinstance(y, ast.UnknownType | None):
            continue
        if type(x) is not type(y):
            return False
        match x, y:
            case ast.TypeVar(), ast.TypeVar():
                if not bound.same(x.name, y.name):
                    return False
            case ast.FuncType(), ast.FuncType():
                if not bound.bind(x.type_params, y.type_params, names):
                    return False
                if len(x.params) != len(y.params):
                    return False
                work += [*zip(x.params, y.params, strict=True), (x.result, y.result)]
            case ast.TupleType(), ast.TupleType():
                if len(x.fields) != len(y.fields):
                    return False
                work += zip(x.fields, y.fields, strict=True)
            case ast.DataType(), ast.DataType():
                if x.name != y.name or len(x.args) != len(y.args):
                    return False
                work += zip(x.args, y.args, strict=True)
            case ast.RefType(), ast.RefType():
                work.append((x.value, y.value))
            case _:
                if x != y:
                    return False
    return True
