"""``tune_configs.yaml``: in which configurations Triton kernels are tried, by kernel name.

A name has a list of entries. A plain entry is one configuration::

    softmax:
      - META: {BLOCK: 1024}
        num_warps: 8

An entry with ``gen: true`` is all combinations of lists. ``param_map`` says, of each constant and
of each number, which list its values are from::

    matmul:
      - gen: true
        param_map: {META: {BLOCK_M: tiles, BLOCK_N: tiles}, num_warps: warps}
        tiles: [64, 128]
        warps: [4, 8]

``META`` may also name one list, of mappings. What an entry leaves out has the value of `DEFAULTS`,
also if the entry before it states another. Whatever is not understood is an error that names file,
key and line, of that name alone. The content model is FlagGems'; so are the defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from meta.base.errors import FormatError
from meta.base.optional import optional_module
from meta.base.registry import nearest
from meta.base.source import Span

DEFAULTS: Mapping[str, int | None] = {
    "num_warps": 4, "num_stages": 2, "num_ctas": 1, "maxnreg": None,
}  # fmt: skip
MOST = 4096
"""Configurations of a kernel, at most."""
MOST_BYTES = 1 << 18
"""Of a file: what is larger takes seconds to read."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The configurations of a kernel: keyword arguments of `triton.Config` (``kwargs`` are the
    constants), and where they are stated.
    """

    configs: tuple[Mapping[str, Any], ...]
    place: Span


def read_tune_configs(file: Path) -> dict[str, Tuned | FormatError]:
    """Return the configurations of a file, by kernel, or why those of a kernel cannot be used;
    nothing if there is no file.

    Raises FormatError for a file that cannot be read at all, and what `yaml_module` raises.
    """
    if not file.is_file():
        return {}
    return _Reader(file).kernels()


def is_number(key: str) -> bool:
    """Whether a key of an entry is a number of a launch: one of `DEFAULTS`, or one that the
    `triton.Config` of the vendor's Triton takes besides.
    """
    triton = sys.modules.get("triton")
    own = () if triton is None else signature(triton.Config).parameters
    return key in DEFAULTS or (key in own and key not in ("kwargs", "pre_hook", "ir_override"))


def yaml_module() -> Any:
    """Return PyYAML. A vendor's package that has a ``tune_configs.yaml`` depends on it; nothing
    else here reads YAML. Raises FormatError where it is not installed.
    """
    return optional_module(
        "yaml", "reads a tune_configs.yaml", library="PyYAML", install="pyyaml", raises=FormatError
    )


class _Reader:
    """Reads a file by its nodes, which know their lines."""

    def __init__(self, file: Path) -> None:
        self.file, self.yaml = file, yaml_module()
        self.lines: dict[int, int] = {}  # of a value the line of its name

    def kernels(self) -> dict[str, Tuned | FormatError]:
        size = self.file.stat().st_size
        if size > MOST_BYTES:
            raise FormatError(
                "the file is too large for configurations",
                expected=f"at most {MOST_BYTES:,} bytes",
                found=f"{size:,} bytes",
                span=Span(str(self.file), 1),
            )
        try:
            root = self.yaml.compose(self.file.read_text("utf-8"), Loader=self.yaml.SafeLoader)
        except RecursionError:
            raise FormatError("it is nested too deep", span=Span(str(self.file), 1)) from None
        except (self.yaml.YAMLError, UnicodeDecodeError, ValueError, OSError) as error:
            mark = getattr(error, "problem_mark", None)
            line = 1 if mark is None else mark.line + 1
            problem = getattr(error, "problem", None) or str(error)
            raise FormatError(f"no YAML: {problem}", span=Span(str(self.file), line)) from None
        found: dict[str, Tuned | FormatError] = {}
        for name, node in () if root is None else self.mapping(root, "the file"):
            try:
                found[name] = self.kernel(name, node)
            except FormatError as error:
                found[name] = error
        return found

    def kernel(self, name: str, node: Any) -> Tuned:
        """Return the configurations of a name."""
        configs: list[dict[str, Any]] = []
        for entry in self.sequence(node, f"{name!r}"):
            configs += self.entry(name, entry)
            self.require_few(node, name, len(configs))
        return Tuned(tuple(configs), self.place(node))

    def require_few(self, node: Any, name: str, count: int) -> None:
        if count > MOST:
            raise self.error(node, f"{name!r} has {count} configurations", f"at most {MOST}")

    def entry(self, name: str, node: Any) -> list[dict[str, Any]]:
        """Return the configurations of an entry."""
        fields = dict(self.mapping(node, f"an entry of {name!r}"))
        gen = fields.pop("gen", None)
        if gen is not None and self.value(gen, bool, "gen"):
            return list(self.generated(name, node, fields))
        for key, value in fields.items():
            if key != "META" and not is_number(key):
                self.unknown(value, key, name, ("META", *DEFAULTS, "gen"))
        config = {key: self.number(fields[key], key) for key in fields if key != "META"}
        if "META" not in fields:
            raise self.error(node, f"an entry of {name!r} has no META", "META: {BLOCK: 1024}, say")
        return [{"kwargs": self.constants(fields["META"]), **DEFAULTS, **config}]

    def generated(self, name: str, node: Any, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the combinations of the lists of an entry."""
        if "param_map" not in fields:
            raise self.error(node, f"an entry of {name!r} with gen: true has no param_map", None)
        mapped = dict(self.mapping(fields.pop("param_map"), "param_map"))
        used: set[str] = set()
        axes: list[tuple[str, list[Any]]] = []
        for key, source in mapped.items():
            if key == "META":
                axes += self.constant_axes(source, fields, used)
            elif is_number(key):
                nodes = self.values_of(source, fields, used, key)
                axes.append((key, [self.number(one, key) for one in nodes]))
            else:
                self.unknown(source, key, f"param_map of {name}", ("META", *DEFAULTS))
        for key, value in fields.items():
            if key not in used:
                self.unknown(value, key, name, (*used, "param_map", "gen"))
        if "META" not in mapped:
            raise self.error(node, f"the param_map of {name!r} has no META", None)
        self.require_few(node, name, prod(len(values) for _, values in axes))
        names = [key for key, _ in axes]
        for values in product(*(values for _, values in axes)):
            chosen = list(zip(names, values, strict=True))
            constants: dict[str, Any] = {}
            for key, value in chosen:
                if key == "META":
                    constants |= value
            numbers = {key: value for key, value in chosen if key != "META"}
            yield {"kwargs": constants, **DEFAULTS, **numbers}

    def constant_axes(
        self, source: Any, fields: dict[str, Any], used: set[str]
    ) -> list[tuple[str, list[Any]]]:
        """Return what the constants of an entry may be: a list of mappings for each constant, or
        one list.
        """
        if not isinstance(source, self.yaml.MappingNode):
            nodes = self.values_of(source, fields, used, "META")
            return [("META", [self.constants(one) for one in nodes])]
        axes = []
        for constant, where in self.mapping(source, "META"):
            nodes = self.values_of(where, fields, used, constant)
            axes.append(("META", [{constant: self.scalar(one, constant)} for one in nodes]))
        return axes

    def values_of(self, source: Any, fields: dict[str, Any], used: set[str], what: str) -> Any:
        """Return the nodes of the values that a ``param_map`` gives: of the list that it names, of
        a list that is written there, or of one number.
        """
        if isinstance(source, self.yaml.SequenceNode):
            return source.value
        name = self.scalar(source, what)
        if isinstance(name, int):
            return [source]
        if name not in fields:
            raise self.error(
                source, f"param_map takes {what} from {name!r}, which the entry does not have",
                f"a list of that name, one of {sorted(fields)}", nearest(str(name), fields),
            )  # fmt: skip
        used.add(name)
        found = self.sequence(fields[name], f"{name!r}")
        if not found:
            raise self.error(fields[name], f"the list {name!r} is empty", "one value or more")
        return found

    def constants(self, node: Any) -> dict[str, Any]:
        return {name: self.scalar(value, name) for name, value in self.mapping(node, "META")}

    def mapping(self, node: Any, what: str) -> list[tuple[str, Any]]:
        """Return the pairs of a mapping, in order; an error for a name that is there twice."""
        if not isinstance(node, self.yaml.MappingNode):
            raise self.error(node, f"{what} is no mapping", "name: value")
        pairs: dict[str, Any] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, self.yaml.ScalarNode) else None
            if not isinstance(name, str) or name in pairs:
                why = "has a name that is no word" if name is None else f"has {name!r} twice"
                raise self.error(key, f"{what} {why}", "each name once")
            pairs[name] = value
            self.lines[id(value)] = key.start_mark.line
        return list(pairs.items())

    def sequence(self, node: Any, what: str) -> list[Any]:
        if not isinstance(node, self.yaml.SequenceNode):
            raise self.error(node, f"{what} is no list", "lines that begin with -")
        found: list[Any] = node.value
        return found

    def constructed(self, node: Any) -> Any:
        """Return what a scalar means; None for what is none."""
        if not isinstance(node, self.yaml.ScalarNode):
            return None
        try:
            return self.yaml.SafeLoader("").construct_object(node)
        except (self.yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError) as e:
            what = getattr(e, "problem", None) or str(e)
            raise self.error(
                node, f"a value cannot be read: {what}", "a number or a word"
            ) from None

    def scalar(self, node: Any, what: str) -> int | bool | str:
        """Return the value of a constant."""
        value = self.constructed(node)
        if isinstance(value, int | str):
            return value
        raise self.error(node, f"{what} is no constant", "a whole number, true, false or a word")

    def value(self, node: Any, kind: type, what: str) -> Any:
        found = self.scalar(node, what)
        if type(found) is not kind:
            raise self.error(node, f"{what} is {found!r}", "true or false" if kind is bool else "")
        return found

    def number(self, node: Any, what: str) -> int | None:
        """Return a number of a configuration, which is positive; None for null where that is a
        value.
        """
        value = self.constructed(node)
        is_null = isinstance(node, self.yaml.ScalarNode) and value is None
        if is_null and DEFAULTS.get(what) is None:
            return None
        if type(value) is int and value > 0:
            return value
        raise self.error(
            node, f"{what} is no positive number", f"such as {DEFAULTS.get(what) or 128}"
        )

    def unknown(self, node: Any, key: str, name: str, known: tuple[str, ...]) -> None:
        """Raise the error for a key that means nothing."""
        raise self.error(
            node, f"{name} has an unknown key {key!r}", f"some of {known}", nearest(key, known)
        )

    def place(self, node: Any) -> Span:
        return Span(str(self.file), self.lines.get(id(node), node.start_mark.line) + 1)

    def error(
        self, node: Any, what: str, expected: str | None, hint: str | None = None
    ) -> FormatError:
        found = getattr(node, "value", None)
        shown = repr(found) if isinstance(found, str) else None
        return FormatError(
            what, expected=expected or None, found=shown, hint=hint, span=self.place(node)
        )
