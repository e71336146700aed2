"""Calls of `meta.distributed` that do not fit: each is an error that says what does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, DistributedError, MetaError

X = torch.ones(2)
dist: Any = meta.distributed
"""Called as its types forbid."""


def on_ranks(call: Callable[[Any], Any]) -> Callable[[], Any]:
    """Return what calls a function of an array on two ranks, along "dp" and along "tp"."""
    return lambda: dist.simulate({"dp": 2, "tp": 1}).run(lambda: call(meta.array(X)))


def net() -> meta.Model:
    return meta.model.Sequential(meta.model.Linear(4, 8), meta.model.Linear(8, 4))


CALLS: dict[str, tuple[Callable[[], Any], type[MetaError], str]] = {
    "a function and no number": (
        lambda: dist.simulate(lambda: 1),
        ArgumentError,
        r"no axes of a mesh[\s\S]*simulate\(sizes\).run\(function\)",
    ),
    "a function in the place of alike": (
        lambda: dist.simulate(2, lambda: 1),
        ArgumentError,
        r"alike names axes[\s\S]*simulate\(sizes\).run\(function\)",
    ),
    "nothing": (
        lambda: dist.simulate(),
        ArgumentError,
        r"^simulate: missing a required argument: 'sizes'\n  expected: simulate\(sizes",
    ),
    "a name and no size": (
        lambda: dist.simulate("dp"),
        ArgumentError,
        'no axes of a mesh[\\s\\S]*{"dp": 4, "tp": 2}',
    ),
    "half a rank": (lambda: dist.simulate(2.5), ArgumentError, "no axes"),
    "sizes without names": (
        lambda: dist.simulate([2, 2]),
        ArgumentError,
        "no axes of a mesh",
    ),
    "alike, a number": (
        lambda: dist.simulate(2, alike=3),
        ArgumentError,
        "alike names axes",
    ),
    "alike, no axis": (
        lambda: dist.simulate({"data": 2}, alike="dta"),
        ArgumentError,
        "'dta', which is no axis of this mesh[\\s\\S]*did you mean 'data'",
    ),
    "run what was run": (
        lambda: dist.simulate(2).run(3),
        ArgumentError,
        r"ranks run a function[\s\S]*run\(function, \*args\)",
    ),
    "run nothing": (
        lambda: dist.simulate(2).run(),
        ArgumentError,
        "^run: missing a required argument: 'function'",
    ),
    "plan a name": (
        lambda: dist.planned("dp").__enter__(),
        ArgumentError,
        "no axes of a mesh",
    ),
    "plan with a function": (
        lambda: dist.planned(2, print),
        ArgumentError,
        r"^planned: too many positional arguments",
    ),
    "a mesh of a name": (
        lambda: dist.Mesh("dp"),
        ArgumentError,
        "no axes of a mesh",
    ),
    "a mesh and no argument": (
        lambda: dist.Mesh(),
        ArgumentError,
        "^Mesh: missing a required argument: 'sizes'",
    ),
    "a mesh alike a function": (
        lambda: dist.Mesh(2, print),
        ArgumentError,
        "alike names axes",
    ),
    "a mesh of one process": (lambda: dist.Mesh(2), DistributedError, "no processes yet"),
    "the size along a number": (
        on_ranks(lambda x: dist.size(0)),
        ArgumentError,
        r"given by its name\n  expected: 'dp' or 'tp'\n  found:    0 \(int\)",
    ),
    "the size along nothing": (
        on_ranks(lambda x: dist.size()),
        ArgumentError,
        "^size: missing a required argument: 'over'",
    ),
    "the place along a list": (
        on_ranks(lambda x: dist.rank(["dp"])),
        ArgumentError,
        r"given by its name[\s\S]*\['dp'\] \(list\)",
    ),
    "the place alone": (
        lambda: dist.rank(None),
        ArgumentError,
        "given by its name[\\s\\S]*a str, such as 'dp'",
    ),
    "an index along a set": (
        on_ranks(lambda x: dist.axis_index({"dp"})),
        ArgumentError,
        "given by its name",
    ),
    "another axis": (
        on_ranks(lambda x: dist.all_reduce(x, "dpp")),
        DistributedError,
        "no axis 'dpp'[\\s\\S]*did you mean 'dp'",
    ),
    "arguments the other way round": (
        on_ranks(lambda x: dist.all_reduce("dp", x)),
        ArgumentError,
        r"given by its name[\s\S]*\(ndarray\)",
    ),
    "without an axis": (
        on_ranks(lambda x: dist.all_reduce(x)),
        ArgumentError,
        r"^all_reduce: missing a required argument: 'over'[\s\S]*all_reduce\(x, over, reduction",
    ),
    "torch's op": (
        on_ranks(lambda x: dist.all_reduce(x, "dp", op="sum")),
        ArgumentError,
        "no argument 'op'[\\s\\S]*called 'reduction'",
    ),
    "torch's dim": (
        on_ranks(lambda x: dist.all_gather(x, "dp", dim=0)),
        ArgumentError,
        "no argument 'dim'[\\s\\S]*called 'axis'",
    ),
    "torch's src": (
        on_ranks(lambda x: dist.broadcast(x, "dp", src=0)),
        ArgumentError,
        "no argument 'src'[\\s\\S]*called 'root'",
    ),
    "torch's group": (
        on_ranks(lambda x: dist.reduce_scatter(x, group="dp")),
        ArgumentError,
        "no argument 'group'[\\s\\S]*called 'over'",
    ),
    "a copy to nobody": (
        on_ranks(lambda x: dist.copy_to(x)),
        ArgumentError,
        "^copy_to: missing a required argument: 'over'",
    ),
    "parts of a number": (lambda: dist.unshard(3), ArgumentError, "no parts"),
    "parts of nothing": (lambda: dist.unshard(), ArgumentError, "missing"),
    "another device": (
        lambda: dist.init("gpu"),
        ArgumentError,
        "on no such device[\\s\\S]*found:    'gpu'",
    ),
    "a text of seconds": (
        lambda: dist.init("cpu", timeout="5"),
        ArgumentError,
        "timeout is in seconds",
    ),
    "no time": (lambda: dist.init("cpu", timeout=0), DistributedError, "no time to wait"),
    "an end with an argument": (
        lambda: dist.end(1),
        ArgumentError,
        "^end: too many positional arguments",
    ),
    "links along a number": (
        on_ranks(lambda x: dist.measure_links(2)),
        ArgumentError,
        "given by its name",
    ),
    "links along nothing": (
        lambda: dist.measure_links(),
        ArgumentError,
        "^measure_links: missing a required argument: 'over'",
    ),
    "the axis before the plan": (
        on_ranks(lambda x: dist.tensor_parallel(net(), "tp", {"0": "column"})),
        ArgumentError,
        r"given by its name[\s\S]*\(dict\)",
    ),
    "a plan that is an axis": (
        on_ranks(lambda x: dist.tensor_parallel(net(), "tp")),
        ArgumentError,
        "a plan is a dict",
    ),
    "a plan of numbers": (
        on_ranks(lambda x: dist.tensor_parallel(net(), {0: "column"})),
        ArgumentError,
        "a plan names layers",
    ),
    "a module of torch": (
        on_ranks(lambda x: dist.tensor_parallel(torch.nn.Linear(2, 2))),
        ArgumentError,
        r"expected: a meta.Model\n  found:    Linear[\s\S]*from_torch",
    ),
    "the plan of a number": (
        on_ranks(lambda x: dist.tensor_parallel_plan(3)),
        ArgumentError,
        "expected: a meta.Model",
    ),
    "the plan along a number": (
        on_ranks(lambda x: dist.tensor_parallel_plan(net(), 0)),
        ArgumentError,
        "given by its name",
    ),
    "a report of a number": (
        on_ranks(lambda x: dist.explain_tensor_parallel(3)),
        ArgumentError,
        "expected: a meta.Model",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_does_not_fit(name: str) -> None:
    call, error, what = CALLS[name]
    with pytest.raises(error, match=what) as caught:
        call()
    assert type(caught.value) is error
    assert caught.value.span is not None and caught.value.span.file.endswith("test_wrong_calls.py")


def test_an_error_of_the_function_is_its_own() -> None:
    """A signature is looked at where a call fails, and what fits is not blamed."""
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        dist.simulate(2).run(lambda: 1 + "a")  # type: ignore[operator]
    assert not isinstance(caught.value, MetaError)


def test_names_that_are_alike() -> None:
    """That of tensor parallel models is the default, whatever the mesh."""
    assert dist.simulate(2).alike == ("tp",)
    assert dist.simulate({"a": 1, "b": 2}, alike=["a", "tp"]).alike == ("a", "tp")
