"""The reference: a page for each public module, from its ``__all__``; one for each family of
operators, from the registry. mkdocstrings shows functions and classes, from their sources.
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from textwrap import dedent, indent
from types import ModuleType
from typing import Any

from meta.base.registry import FUNCTIONS, OPERATORS
from meta.base.source import short_site
from meta.cli.card import by_family, card, gradient_text
from meta.cli.operators import kernels_text, signature_text
from meta.op.core import Op
from meta.testing.case import ErrorSample, Sample
from tools.site import examples
from tools.site.docstrings import TARGETS, markdown
from tools.site.names import is_made, public_modules, public_names, public_objects


@cache
def pages() -> dict[str, dict[str, str]]:
    """Return the texts of all pages by where they lie, by section."""
    modules = public_modules()
    shown = {id(OPERATORS[name]): f"meta.{name}" for name in OPERATORS}
    shown.update((id(module), name) for name, module in modules.items())
    shown.update((id(thing), name) for name, thing in public_objects().items())
    TARGETS.update((target, target) for target in shown.values() if target != "meta")
    api = {f"reference/{name}.md": module_page(name, m, shown) for name, m in modules.items()}
    records, operators = examples.records(), {}
    for family, ops in by_family().items():
        texts = [operator_text(op, *records.get(op.name, ([], []))) for op in ops]
        operators[f"reference/operators/{family}.md"] = "\n\n".join([f"# {family}", *texts])
    texts = [object_text(f"meta.{name}", FUNCTIONS[name]) for name in FUNCTIONS]
    operators["reference/operators/functions.md"] = "\n\n".join(["# Functions", *texts])
    return {"API": api, "Operators by family": operators}


def module_page(name: str, module: ModuleType, shown: dict[int, str]) -> str:
    """Return a page: what the module says of itself, its names in a table, and their texts."""
    rows, texts = [("Name", "")], []
    for public in public_names(module):
        thing, full = getattr(module, public), f"{name}.{public}"
        target = shown.get(id(thing))
        if isinstance(thing, ModuleType):
            rows.append((f"[`{public}`]({target}.md)", summary(thing)))
        elif target is None:  # a constant
            rows.append((f"`{public}`", f"`{constant_text(thing)}`"))
        else:
            rows.append((f"[`{public}`][{target}]", summary(thing)))
            if target == full:
                texts.append(object_text(full, thing))
    return "\n\n".join([heading(name)[1:], markdown(module.__doc__ or ""), table(rows), *texts])


def table(rows: list[tuple[str, str]]) -> str:
    """Return a table, the first row of which is its head."""
    head, *others = (f"| {name} | {text} |" for name, text in rows)
    return "\n".join([head, "| --- | --- |", *others])


def constant_text(thing: Any) -> str:
    """Return a constant as Python writes it, or else of what class it is."""
    text = repr(thing)
    plain = len(text) <= 80 and " at 0x" not in text
    return text if plain else type(thing).__name__


def summary(thing: Any) -> str:
    """Return the first sentence of a docstring, for a cell of a table."""
    first = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return markdown(re.split(r"(?<=[.:]) ", first)[0].replace("|", r"\|"))


def object_text(name: str, thing: Any) -> str:
    """Return the directive that shows a function or a class from its source; the text itself of a
    function that another one makes.
    """
    if is_made(thing):
        called = f"```python\n{name}{signature_text(thing)}\n```"
        return "\n\n".join([heading(name), called, markdown(thing.__doc__), source_text(thing)])
    return f"""[](){{ #{name} }}

::: {thing.__module__}.{thing.__qualname__}
    options:
      heading: {name}
      toc_label: {name.rpartition(".")[2]}"""


def operator_text(op: Op, samples: list[Sample], errors: list[ErrorSample]) -> str:
    """Return all that is known of an operator, an example, and the source of its type function."""
    record = card(op)
    facts = {
        "Gradient": gradient_text(record["gradient"]),
        "Mixed precision": record["cast_rule"]["rule"],
        "Kernels": kernels_text(record).removeprefix("Kernels: "),
        "Imported from": ", ".join(record["converters"]) or "nothing",
    }
    parts = [
        heading(f"meta.{op.name}"),
        f"```python\nmeta.{op.name}{signature_text(op)}\n```",
        markdown(record["doc"]),
        table([("Schema", f"`{record['schema']}`"), *facts.items()]),
    ]
    if program := examples.example(op, samples):
        parts.append(f"Example:\n\n```python\n{program}\n```")
    if refused := list(examples.refusals(op, errors)):
        parts.append("Refused:\n\n```text\n" + "\n".join(refused) + "\n```")
    return "\n\n".join([*parts, source_text(op.type_function)])


def heading(name: str) -> str:
    """Return the heading of a name that mkdocstrings does not show."""
    return f"## {name} {{ #{name} data-toc-label='{name.rpartition('.')[2]}' }}"


def source_text(function: Any) -> str:
    """Return the source of a function, folded."""
    lines, number = inspect.getsourcelines(inspect.unwrap(function))
    file = short_site(f"{inspect.getsourcefile(inspect.unwrap(function))}:{number}")
    source = f"```python\n{dedent(''.join(lines))}```"
    return f'??? quote "Source: {file}"\n' + indent(source, "    ")
