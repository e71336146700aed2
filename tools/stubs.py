"""Stubs of the names that are made at run time, so that editors and type checkers know them.

    python -m tools.stubs

writes them beside the modules: operators and composed functions, with their signature and the first
paragraph of their docstrings, the methods of arrays, and what modules export that have a
`__getattr__`. `tests/tools/test_stubs.py` says which file is not what this writes.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import meta
from meta.base.methods import Methods, Overloads
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.ir.types import TensorType
from meta.op.core.op import ComposedOp, Op
from meta.op.core.slot import Slot
from meta.runtime import ndarray as creation

ROOT = Path(__file__).parents[1]
TYPES = "meta.runtime.array_types"
MODULES = (
    *("meta", "meta.fft", "meta.linalg", "meta.random", "meta.array_api"),
    *("meta.amp", "meta.distributed", "meta.grad", "meta.language", "meta.model"),
    *("meta.optim", "meta.train"),
)
WIDTH = 100
ALIASES = '''
class SupportsArray(Protocol):
    def __array__(self) -> Any: ...

class SupportsDLPack(Protocol):
    def __dlpack__(self) -> Any: ...

Number: TypeAlias = float | np.number[Any] | np.bool_
"""A number whose value a kernel is given at run time."""
ArrayLike: TypeAlias = (
    SupportsArray | SupportsDLPack | complex | np.generic | list[Any] | tuple[Any, ...]
)
"""An array, a traced one, or what `meta.array` takes: torch's and NumPy's, numbers, lists."""
Ints: TypeAlias = int | tuple[int, ...] | list[int]
"""An int or several: a shape, axes, the extents of a window."""
DTypeLike: TypeAlias = str | torch.dtype | np.dtype[Any] | type[Any]
"""A dtype: its name, or that of torch, NumPy or Python."""
DeviceLike: TypeAlias = str | torch.device
"""A device: its name, or that of torch."""
'''
ACCEPTS = {
    "tensor": "ArrayLike",
    "tensor written in place": "ndarray | torch.Tensor",
    "tuple of tensors": "Sequence[ArrayLike]",
    "tuple of tensors written in place": "Sequence[ndarray | torch.Tensor]",
    "number": "Number",
    "number or tensor": "ArrayLike",
    "tuple of ints": "tuple[int, ...] | list[int]",
    "dtype": "DTypeLike",
    "device": "DeviceLike",
}
"""By what a slot accepts: its annotation."""
OBJECTS = {"dtype": "DTypeLike | None", "device": "DeviceLike | None", "obj": "ArrayLike"}
"""By the name of an argument that is annotated as `object`, of which every value is read."""
HOME = {
    "Any": "typing",
    "Callable": "collections.abc",
    "NamedTuple": "typing",
    "Sequence": "collections.abc",
    "ArrayExport": "meta.runtime.array_export",
    "Protocol": "typing",
    "TypeAlias": "typing",
    "ndarray": "meta.runtime.ndarray",
    **dict.fromkeys(("ArrayLike", "DTypeLike", "DeviceLike", "Number"), TYPES),
}
"""By a name that annotations have: its module."""
PYTHON = {"__contains__": "bool", "__setitem__": "None", "at": "Any"} | dict.fromkeys(
    ("__divmod__", "__rdivmod__"), "tuple[ndarray, ndarray]"
)
"""By a method that Python calls, or a property: its result."""
HIDDEN = ("__getattr__", "__array_function__", "__array_namespace__", "__hash__")
UNIONS = (typing.Union, types.UnionType)


def slot_type(slot: Slot) -> str:
    """Return the annotation of an argument of an operator."""
    if slot.kind != "attribute":
        return ACCEPTS[slot.accepts.removesuffix(" or None")] + " | None" * slot.optional
    texts = [ACCEPTS.get(part, part) for part in slot.accepts.split(" or ")]
    default = "None" if texts[0] in ("DTypeLike", "DeviceLike") and slot.has_default else texts[-1]
    return " | ".join(dict.fromkeys([*texts, default]))


Parameter = tuple[inspect.Parameter, str]


class Stub:
    """The text of a stub, and the modules of the names in it."""

    def __init__(self, module: str, names: Iterable[str] = ()) -> None:
        self.module = module
        self.sources = _imported(module)
        self.shadowed = [n for n in names if hasattr(builtins, n)]
        self.homes: dict[str, str] = {}
        self.exports: list[str] = []
        self.shown: set[str] = set()
        self.definitions: list[str] = []

    def hint(self, hint: Any, result: bool) -> str:
        """Return an annotation as text. `Any` is an array, or as an argument what becomes one."""
        if hint is Any:
            return "ndarray" if result else "ArrayLike"
        if hint in (None, types.NoneType, Ellipsis):
            return "..." if hint is Ellipsis else "None"
        if hint is TensorType:
            return "ndarray"
        origin, args = get_origin(hint), [a for a in get_args(hint) if a != ()]  # of tuple[()]
        if origin is typing.Annotated:
            return self.hint(args[0], result)
        if origin is get_origin(Callable[[], Any]):
            return "Callable[..., Any]"
        inner = [self.hint(a, result) for a in args]
        if origin in UNIONS:
            return " | ".join(dict.fromkeys(inner))
        kind = origin or hint
        if hasattr(kind, "_fields") and kind.__module__ != self.module:
            self.homes[kind.__name__] = TYPES
            return str(kind.__name__)
        if kind.__module__ not in ("builtins", self.module):
            self.homes[kind.__name__] = kind.__module__
        name = str(kind.__name__)
        return f"{name}[{', '.join(inner) or '()'}]" if origin else name

    def result(self, op: Op) -> str:
        """Return the annotation of an operator's result: its own, and the arrays that it writes."""
        if get_origin(op.schema.returns) in UNIONS:
            return "Any"  # as the arguments have it; each call would have to take a union apart
        own = self.hint(op.schema.returns, True)
        if not op.schema.written:
            return own
        if own.endswith("...]") or any(op.schema.kinds[i] == "tensors" for i in op.schema.written):
            return "tuple[ndarray, ...]"
        count = own.count("ndarray") + len(op.schema.written)
        return f"tuple[{', '.join(['ndarray'] * count)}]"

    def operator(self, op: Op) -> tuple[list[Parameter], str]:
        """Return the parameters of an operator's call, with annotations, and that of its result."""
        slots = {s.name: slot_type(s) for s in op.schema.slots}
        result = self.result(op)
        if isinstance(op, ComposedOp):
            found, annotated = self.function(op.written, slots)
            flags = any(p.name.startswith("return_") for p, _ in found)
            result = "Any" if flags else result if annotated == "ndarray" else annotated
        else:
            found = [(p, slots[p.name]) for p in op.schema.signature.parameters.values()]
            if op.unary:
                found[1:] = [(p.replace(default=None), f"{t} | None") for p, t in found[1:]]
        if result == "ndarray":
            out = inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None)
            named = any(p.kind is p.VAR_KEYWORD for p, _ in found)
            found.insert(len(found) - named, (out, "ndarray | None"))
        return found, result

    def function(
        self, f: Callable[..., Any], slots: Mapping[str, str] = {}
    ) -> tuple[list[Parameter], str]:
        """Return the parameters of a function, with annotations, and that of its result.

        slots: by the name of a parameter annotated with `Any`, what is known of it.
        """
        hints = inspect.get_annotations(inspect.unwrap(f), eval_str=True)
        found = []
        for p in inspect.signature(f).parameters.values():
            hint = hints.get(p.name, Any)
            text = OBJECTS.get(p.name, "object") if hint is object else self.hint(hint, False)
            if hint is Any and p.name in ("dtype", "device"):
                text = OBJECTS[p.name]
            elif hint is Any:
                text = text if p.kind is p.VAR_POSITIONAL else slots.get(p.name, text)
                text += " | None" * (p.default is None and "None" not in text)
            found.append((p, text))
        return found, self.hint(hints.get("return", Any), True)

    def call(self, value: Any) -> tuple[list[Parameter], str]:
        """Return the parameters of an operator or function, and the annotation of its result."""
        return self.operator(value) if isinstance(value, Op) else self.function(value)

    def method(self, name: str, value: Any) -> str:
        """Return the definition of a method: an operator or function without its first argument."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        (first, _), *rest = [(p, t) for p, t in self.call(value)[0]]
        result, note = PYTHON.get(name) or self.call(value)[1], ""
        if name in ("__eq__", "__ne__"):
            rest, note = [(p, "object") for p, _ in rest], "  # type: ignore[override]"
        if first.kind is first.VAR_POSITIONAL:
            return ""
        if name.startswith("__"):  # Python gives one operand; some functions here take several
            rest = [(p.replace(kind=kind), "Any" if p.name == "index" else t) for p, t in rest]
            rest = [] if name == "__invert__" else rest
        own = (inspect.Parameter("self", kind), "")
        return self.definition(name, [own, *rest], result, value.__doc__, "    ", note)

    def definition(
        self,
        name: str,
        parameters: Iterable[Parameter],
        result: str,
        doc: str | None,
        indent: str = "",
        note: str = "",
    ) -> str:
        """Return a definition with the first paragraph of its docstring."""
        texts = self.signature(parameters)
        head = f"{indent}def {name}({', '.join(texts)}) -> {self.qualified(result)}:"
        if len(head) > WIDTH - 4:
            inner = "".join(f"{indent}    {p},\n" for p in texts)
            head = f"{indent}def {name}(\n{inner}{indent}) -> {self.qualified(result)}:"
        lines = inspect.cleandoc(doc or "").partition("\n\n")[0].replace("\\", r"\\").splitlines()
        if not lines:
            return f"{head} ...{note}\n"
        text = "\n".join(f"{indent}    {line}".rstrip() for line in lines).strip()
        end = f"\n{indent}    " if lines[1:] else ""
        return f'{head}{note}\n{indent}    """{text}{end}"""\n'

    def signature(self, parameters: Iterable[Parameter]) -> list[str]:
        """Return the parameters as a definition has them."""
        texts: list[str] = []
        kinds = inspect.Parameter
        before = kinds.KEYWORD_ONLY if not parameters else kinds.POSITIONAL_OR_KEYWORD
        stars = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}
        for p, annotation in parameters:
            if before is kinds.POSITIONAL_ONLY and p.kind is not before:
                texts.append("/")
            if p.kind is kinds.KEYWORD_ONLY and before < kinds.VAR_POSITIONAL:
                texts.append("*")
            before = p.kind
            default = "" if p.default is p.empty else f" = {_default(p.default)}"
            of_type = f": {self.qualified(annotation)}" if annotation else ""
            texts.append(f"{stars.get(p.kind, '')}{p.name}{of_type}{default}")
        return [*texts, "/"] if before is kinds.POSITIONAL_ONLY else texts

    def qualified(self, annotation: str) -> str:
        """Return an annotation with ``builtins.`` before what is another thing in the module."""
        for name in self.shadowed:
            annotation = re.sub(rf"(?<![\w.]){name}(?!\w)", f"builtins.{name}", annotation)
        return annotation

    def export(self, name: str, value: Any) -> None:
        """Add a name that the module shows: where it comes from, or its definition."""
        home = getattr(value, "__module__", None)
        written = home in (self.module, creation.__name__)
        if isinstance(value, types.ModuleType) and callable(value):
            self.exports.append(f"import {value.__name__} as _{name}")
            rows = [("__call__", name), *((n, n) for n in value.__all__)]
            body = "".join(f"    {n} = staticmethod(_{name}.{of})\n" for n, of in rows)
            kind = f"_{name.title()}"
            self.definitions.append(f"class {kind}:\n{body}\n{name}: {kind}\n")
        elif isinstance(value, types.ModuleType):
            package, _, of = value.__name__.rpartition(".")
            source = "." if package == self.module else package
            self.exports.append(f"from {source} import {of} as {name}")
        elif self.module == "meta.array_api" and home != self.module and name in BASE:
            self.exports.append(f"from meta import {name} as {name}")
        elif isinstance(value, Op) or name in FUNCTIONS or (inspect.isfunction(value) and written):
            parameters, result = self.call(value)
            self.definitions.append(self.definition(name, parameters, result, value.__doc__))
        elif inspect.isclass(value) and home == self.module:
            self.definitions.append(named_tuple(value))
        elif hasattr(value, "__qualname__"):
            self.shown.add(name)
            own = value.__name__ if name not in self.sources else name
            if own != name:  # a name in a stub is not exported but as itself
                self.homes[own] = str(home)
                self.definitions.append(f"{name} = {own}\n")
                return
            self.exports.append(f"from {self.sources.get(name, home)} import {own} as {name}")
        else:
            self.definitions.append(f"{name}: {self.qualified(self.hint(type(value), True))}\n")

    def text(self, title: str) -> str:
        """Return the file."""
        body = "\n".join(self.definitions)
        homes = HOME | self.homes
        used = set(
            re.findall(r"(?<![\w.\"'`])[A-Za-z_]\w*", re.sub(r'""".*?"""', "", body, flags=re.S))
        )
        imports = [
            f"from {homes[n]} import {n}"
            for n in used & set(homes) - self.shown
            if homes[n] != self.module
        ]
        imports += [f"import {n}" for n in ("builtins", "torch") if n in used]
        imports += ["import numpy as np"] * ("np" in used)
        head = f'"""{title}\n\nWritten by `python -m tools.stubs`.\n"""\n\n'
        return head + "\n".join(sorted({*imports, *self.exports})) + f"\n\n{body}"


BASE = frozenset({*OPERATORS, *FUNCTIONS, *meta.__all__})


def _default(value: Any) -> str:
    text = repr(value)
    try:
        return text if ast.literal_eval(text) == value else "..."
    except (ValueError, SyntaxError):
        return "..."


def _imported(module: str) -> dict[str, str]:
    """Return, by name, the module that another module imports it from."""
    text = inspect.getsource(importlib.import_module(module)) if module != TYPES else ""
    found = [n for n in ast.parse(text).body if isinstance(n, ast.ImportFrom)]
    return {a.asname or a.name: str(n.module) for n in found for a in n.names}


def named_tuple(kind: Any) -> str:
    """Return the definition of what a function returns: several arrays by name."""
    rows = "".join(f"    {field}: ndarray\n" for field in kind._fields)
    doc = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].splitlines()
    text = "\n    ".join(doc)
    return f'class {kind.__name__}(NamedTuple):\n    """{text}"""\n\n{rows}'


def _named_tuples() -> list[Any]:
    """Return the types of what operators and functions return that is several arrays by name."""
    functions = [*FUNCTIONS.values(), *(getattr(o, "written", None) for o in OPERATORS.values())]
    known = [inspect.get_annotations(inspect.unwrap(f), eval_str=True) for f in functions if f]
    found = {hints["return"] for hints in known if hasattr(hints.get("return"), "_fields")}
    return sorted(found, key=lambda kind: kind.__name__)


def module_stub(module: str) -> str:
    """Return the stub of a module."""
    found = importlib.import_module(module)
    names = {*found.__all__, *(BASE if module == "meta" else ())}
    names = sorted(n for n in names if not n.startswith("__"))
    stub = Stub(module, names)
    for name in names:
        stub.export(name, getattr(found, name))
    if module in ("meta", "meta.array_api"):
        version = "__version__" if module == "meta" else "__array_api_version__"
        stub.definitions.append(f"{version}: str\n")
    return stub.text((found.__doc__ or "").partition("\n")[0])


def array_stub() -> str:
    """Return the stub of what arrays have by the registry, and of the types of arguments."""
    stub = Stub(TYPES)
    methods = []
    for owner in (Overloads, Methods):
        for name, value in vars(owner).items():
            if isinstance(value, property):
                own = (inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), "")
                result = PYTHON.get(name, "ndarray")
                text = stub.definition(name, [own], result, value.__doc__, "    ")
                methods.append(f"    @property\n{text}")
            elif inspect.isfunction(value) and name not in HIDDEN:
                methods.append(stub.method(name, value))
    for registry in (OPERATORS, FUNCTIONS):
        for name in registry:
            derived = getattr(vars(Methods).get(name), "function", None) is registry[name]
            if derived and name in BASE and name not in vars(creation.ndarray):
                methods.append(stub.method(name, registry[name]))
    title = 'class ArrayMethods(ArrayExport):\n    """What arrays have by the registry."""\n\n'
    several = [named_tuple(kind) for kind in _named_tuples()]
    stub.definitions = [ALIASES.strip() + "\n", *several, title + "\n".join(filter(None, methods))]
    return stub.text("Types of arguments, and the methods of arrays, for type checkers alone.")


def files() -> dict[Path, str]:
    """Return the stubs, by their path."""
    found = {ROOT / "meta/runtime/array_types.pyi": array_stub()}
    for module in MODULES:
        path = ROOT.joinpath(*module.split("."))
        package = path.is_dir()
        found[path / "__init__.pyi" if package else path.with_suffix(".pyi")] = module_stub(module)
    return found


def main() -> None:
    """Write the stubs."""
    for path, text in files().items():
        path.write_text(text, "utf-8")
        print(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")


if __name__ == "__main__":
    main()
