"""Which function refers to which others."""

from __future__ import annotations

from collections import Counter

from meta.ir import Block, Call, Function, GlobalVar, If, Module, bindings
from meta.ir.visit import used_atoms

PREPARED_BY = "prepared_by"
"""Attribute of main: the name of the function that `prepare` made, which takes the model's arrays,
and returns what main takes behind them.
"""


def callees(function: Function) -> list[str]:
    """Return the functions of the module that a function refers to, each once, in order of use."""
    return list(dict.fromkeys(a.name for a in used_atoms(function) if isinstance(a, GlobalVar)))


def _rule_functions(function: Function) -> list[str]:
    """Return the functions of the module that a function has in attributes: of its derivative."""
    return [v.name for v in function.attrs.values() if isinstance(v, GlobalVar)]


def used_as_values(module: Module) -> set[str]:
    """Return the names of the functions that are used in another way than to be called."""
    found: set[str] = set()
    for function in module.functions.values():
        called = [b.value.callee for b in bindings(function) if isinstance(b.value, Call)]
        names = Counter(a.name for a in used_atoms(function) if isinstance(a, GlobalVar))
        names.subtract(c.name for c in called if isinstance(c, GlobalVar))
        found.update((+names).keys())
    return found


def reached_from(module: Module, *roots: str) -> set[str]:
    """Return the functions that functions refer to, directly or not, in attributes too."""
    graph = {n: [*callees(f), *_rule_functions(f)] for n, f in module.functions.items()}
    return {name for root in roots for name in _reachable(graph, root)}


def remove_unreachable(module: Module) -> Module:
    """Return the module without functions that neither main nor what prepares it reaches; all of
    them without a main.
    """
    main = module.functions.get("main")
    if main is None:
        return module
    roots = ["main", *([main.attrs[PREPARED_BY]] if PREPARED_BY in main.attrs else [])]
    reached = {*roots, *reached_from(module, *roots)}
    return module.with_functions({n: f for n, f in module.functions.items() if n in reached})


def recursive(module: Module) -> set[str]:
    """Return the names of the functions that may call themselves, directly or not."""
    graph = _graph(module)
    return {name for name in graph if name in _reachable(graph, name)}


def call_counts(module: Module) -> dict[str, int]:
    """Return how many calls of functions one call of each leads to, itself included; callees first.

    Of the branches of an `If` the one with more counts. A function that calls itself counts once
    there: how often it does is not known before it runs. So do functions that are values.
    """
    counts: dict[str, int] = {}

    def within(block: Block) -> int:
        count = 0
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
                count += counts.get(value.callee.name, 1)
            elif isinstance(value, If):
                count += max(within(value.then_block), within(value.else_block))
        return count

    for name in callees_first(module):
        counts[name] = 1 + within(module.functions[name].body)
    return counts


def _graph(module: Module) -> dict[str, list[str]]:
    return {name: callees(function) for name, function in module.functions.items()}


def _reachable(graph: dict[str, list[str]], name: str) -> set[str]:
    """Return the functions that one refers to, directly or not."""
    reached, pending = set[str](), [name]
    while pending:
        new = set(graph[pending.pop()]) - reached
        reached |= new
        pending += new
    return reached


def callees_first(module: Module) -> list[str]:
    """Return all names, a function after those that it refers to; the first of a cycle last."""
    order: dict[str, None] = {}
    entered: set[str] = set()
    for root in module.functions:
        path = [(root, iter([root]))]
        while path:
            owner, rest = path[-1]
            name = next((n for n in rest if n not in entered), None)
            if name is None:
                order.setdefault(owner)
                path.pop()
            else:
                entered.add(name)
                path.append((name, iter(callees(module.functions[name]))))
    return list(order)


def preparation_of(module: Module) -> Function | None:
    """Return the function that computes what main of a compiled module is given besides arrays."""
    name = module.main.attrs.get(PREPARED_BY)
    return None if name is None else module.functions[name]
