"""Statements that call ATen's overloads, from their schemas: one for each that has a converter.

So an overload that `meta.frontend.aten` converts is drawn, and nothing else names it. Whether the
arguments fit, eager PyTorch says when a statement is drawn.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import meta.frontend.aten  # noqa: F401  (registers the converters)
from meta.frontend.aten.registry import aten, overload_of

NUMBERS = {"int": "<k>", "SymInt": "<k>", "number": "<c>", "float": "0.5", "bool": "False"}
"""What stands for a number that a call has to state."""
UNORDERED = ("kthvalue", "median", "mode", "msort", "nanmedian", "sort", "topk")
"""Which of equal elements these mean, their indices and gradients say, PyTorch leaves open."""
AXES = ("dim", "axis", "dim0", "dim1")


@cache
def calls() -> tuple[str, ...]:
    """Return the text of a call of each overload whose results follow from its arguments and are
    tensors in memory of their own.
    """
    found = [_call(overload_of(name)) for name in sorted(aten)]
    return tuple(text for text in found if text)


def _call(overload: Any) -> str:
    """Return the text of a call; "" for an overload that is not drawn."""
    if overload is None or overload.namespace != "aten" or overload.is_view:
        return ""
    schema = overload._schema
    if schema.name.startswith("aten::_") or "backward" in schema.name:
        return ""  # calls that PyTorch makes alone, of which it checks little
    if schema.name == "aten::argsort":
        return ""  # the order of equal elements is open
    kinds = {str(r.type) for r in schema.returns}
    random = torch.Tag.nondeterministic_seeded in overload.tags or "empty" in schema.name
    if schema.is_mutable or random or kinds != {"Tensor"}:
        return ""
    texts, tensors = [], 0
    for argument in schema.arguments:
        text = _argument(argument, tensors)
        if text is None:
            return ""
        tensors += text.startswith(("{", "<same", "["))
        if text:
            texts.append(text)
    if not tensors:
        return ""
    if "_polynomial_" in schema.name:  # of a NaN PyTorch returns memory that it has not written
        texts = [text.replace("{0}", "{0}.nan_to_num()") for text in texts]
    if schema.name.removeprefix("aten::") in UNORDERED:
        texts = [text.replace("{0}", "{0}.detach()") for text in texts]
        values_of = "r0, *_ = " if len(schema.returns) > 1 else ""
        return f"{values_of}torch.ops.{overload!s}({', '.join(texts)})"
    results = "".join(f"r{i}, " for i in range(len(schema.returns)))
    target = f"{results.removesuffix(', ')} = " if len(schema.returns) > 1 else ""
    return f"{target}torch.ops.{overload!s}({', '.join(texts)})"


def _argument(argument: Any, tensors: int) -> str | None:
    """Return the text of an argument: "" if it is left out, None if nothing is known to fit."""
    kind = str(argument.type)
    prefix = f"{argument.name}=" if argument.kwarg_only else ""
    if argument.has_default_value():
        return ""
    if kind == "Tensor":
        return "<same>" if tensors else "{0}"
    if kind == "Optional[Tensor]":
        return f"{prefix}None"
    if kind == "List[Tensor]":
        # Of the states of an LSTM's cell PyTorch reads two without a look at how many there are.
        return "[<same>, <same>]" if tensors else "[{0}, <same>]"
    if argument.name in AXES:
        return "[<A>]" if kind.startswith("List") or "List[int]" in kind else "<A>"
    if kind in ("List[int]", "List[SymInt]", "Optional[List[int]]"):
        return f"{prefix}[2]"
    if kind.startswith("Optional["):
        return f"{prefix}None"
    return f"{prefix}{NUMBERS[kind]}" if kind in NUMBERS else None
