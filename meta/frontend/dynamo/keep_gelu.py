"""`keep_gelu`: a GELU that a model writes out becomes PyTorch's, in a graph of Dynamo's.

``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``, as transformers has it for GPT-2, is
eight kernels in PyTorch, and its gradient more. Fused they still keep the tanh for the gradient,
which under autocast is in float32. One call keeps x alone. It is computed in at least float32 and
rounded once, where the steps are rounded each. The form with ``erf(x / sqrt(2))`` is taken, too.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.functional import gelu

PRODUCTS = {operator.mul, torch.mul, "mul"}
QUOTIENTS = {operator.truediv, torch.div, "div"}
SUMS = {operator.add, torch.add, "add"}
POWERS = {operator.pow, torch.pow, "pow"}
SQUARES = {torch.square, "square"}
TANH = {torch.tanh, "tanh"}
ERF = {torch.erf, "erf"}
"""What stands in a graph for an operation: functions, and names of methods."""
ROOTS = PRODUCTS | QUOTIENTS
ROUNDING = 1e-7
"""By how much, relatively, a constant that is written down may differ from what it stands for."""
CUBIC = 0.044715


def keep_gelu(graph: fx.GraphModule) -> None:
    """Write one call in the place of each GELU in a graph, and in graphs within."""
    replace_calls(graph, ROOTS, _replaced)


def replace_calls(
    graph: fx.GraphModule, names: set[Any], replaced: Callable[[fx.Node], bool]
) -> None:
    """Let a function replace calls of some operations, and say whether it has, in a graph and in
    graphs within.
    """
    for part in graph.modules():
        if isinstance(part, fx.GraphModule):
            found = [replaced(node) for node in list(part.graph.nodes) if is_call(node, names)]
            if any(found):
                part.recompile()


def is_call(node: object, names: set[Any]) -> bool:
    """Whether a value is the call of an operation, with nothing but its operands."""
    if not isinstance(node, fx.Node) or node.op not in ("call_function", "call_method"):
        return False
    return node.target in names and not node.kwargs


def _factors(value: Any) -> tuple[float, Counter[fx.Node]]:
    """Return a value as a number times powers of nodes."""
    if isinstance(value, int | float):
        return float(value), Counter()
    if is_call(value, PRODUCTS) and len(value.args) == 2:
        (one, left), (other, right) = map(_factors, value.args)
        return one * other, left + right
    if is_call(value, QUOTIENTS) and len(value.args) == 2 and _is_number(value.args[1]):
        number, left = _factors(value.args[0])
        return number / value.args[1], left
    squared = is_call(value, SQUARES)
    if squared or (is_call(value, POWERS) and value.args[1] in (2, 3)):
        number, left = _factors(value.args[0])
        times = 2 if squared else int(value.args[1])
        return number**times, Counter({node: count * times for node, count in left.items()})
    return 1.0, Counter([value])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value != 0


def _terms(value: Any) -> tuple[Any, Any] | None:
    """Return the two terms of a sum, a number in front."""
    if not is_call(value, SUMS) or len(value.args) != 2:
        return None
    one, other = value.args
    return (other, one) if isinstance(other, int | float) else (one, other)


def _close(found: float, wanted: float, exact: bool) -> bool:
    return math.isclose(found, wanted, rel_tol=1e-15 if exact else ROUNDING)


def _is_cubic(value: Any, x: fx.Node, exact: bool) -> bool:
    """Whether a value is ``sqrt(2 / pi) * (x + 0.044715 * x**3)``; x may be a common factor."""
    number, nodes = _factors(value)
    common = nodes[x]
    rest = list((nodes - Counter({x: common})).elements())
    terms = _terms(rest[0]) if len(rest) == 1 else None
    if terms is None or common > 1 or not _close(number, math.sqrt(2 / math.pi), exact):
        return False
    parts = [_factors(term) for term in terms]
    wanted = [(1.0, Counter({x: 1 - common})), (CUBIC, Counter({x: 3 - common}))]
    pairs = zip(sorted(parts, key=lambda p: p[1].total()), wanted, strict=True)
    return all(_close(a[0], b[0], exact) and a[1] == +b[1] for a, b in pairs)


def _is_normal(value: Any, x: fx.Node, exact: bool) -> bool:
    """Whether a value is ``x / sqrt(2)``."""
    number, nodes = _factors(value)
    return nodes == Counter({x: 1}) and _close(number, math.sqrt(0.5), exact)


FORMS: list[tuple[set[Any], Callable[[Any, fx.Node, bool], bool], str]] = [
    (TANH, _is_cubic, "tanh"),
    (ERF, _is_normal, "none"),
]


def _replaced(root: fx.Node) -> bool:
    """Write a call of `gelu` in the place of a product that is one; return whether it is."""
    said = root.meta.get("example_value")
    number, nodes = _factors(root)
    if not isinstance(said, Tensor) or number != 0.5 or nodes.total() != 2:
        return False
    exact = said.dtype == torch.float64
    for x, distribution in ((a, b) for a in nodes for b in nodes if a is not b):
        terms = _terms(distribution)
        if terms is None or terms[0] != 1 or not isinstance(terms[1], fx.Node):
            continue
        before: Any = x.meta.get("example_value")
        for names, argument, approximate in FORMS:
            is_form = is_call(terms[1], names) and argument(terms[1].args[0], x, exact)
            if is_form and _computes(before, said) and is_alone(root, (x,)):
                _write(root, x, said.dtype, before.dtype, approximate)
                return True
    return False


def _computes(before: Any, said: Tensor) -> bool:
    """Whether a result is of an argument's shape, and of its dtype or a wider one."""
    if not isinstance(before, Tensor) or not before.dtype.is_floating_point:
        return False
    wider = torch.promote_types(before.dtype, said.dtype) == said.dtype
    return wider and before.shape == said.shape


def is_alone(root: fx.Node, sources: Collection[fx.Node]) -> bool:
    """Whether nothing else is called between the first step from some sources, and from the graph's
    inputs, to a result and the result, which might write them.
    """
    steps, pending = set[fx.Node](), [root]
    while pending:
        node = pending.pop()
        if node not in sources and node not in steps and node.op not in ("placeholder", "get_attr"):
            steps.add(node)
            pending += node.all_input_nodes
    node = root
    while steps:
        if node not in steps:
            return False
        steps.remove(node)
        node = node.prev
    return True


def erase(root: fx.Node, sources: Collection[fx.Node]) -> None:
    """Erase a call that nobody reads, and what only it read, up to some sources."""
    pending = [root]
    erased: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        called = node.op in ("call_function", "call_method")
        if called and not node.users and node not in erased:
            before = node.all_input_nodes
            node.graph.erase_node(node)
            erased.add(node)
            pending += [n for n in before if n not in sources]


def _write(
    root: fx.Node, x: fx.Node, dtype: torch.dtype, before: torch.dtype, approximate: str
) -> None:
    graph = root.graph
    with graph.inserting_before(root):
        given = x if dtype == before else graph.call_method("to", (x, dtype))
        made = graph.call_function(gelu, (given,), {"approximate": approximate})
    for node in (given, made):
        if node is not x:
            node.meta = {**root.meta}
    if given is not x:
        given.meta["example_value"] = x.meta["example_value"].to(dtype)
    root.replace_all_uses_with(made)
    erase(root, (x,))
