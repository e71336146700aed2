"""`meta.explain` of what is composed of several operator calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meta
from meta.base.device import CPU
from meta.base.errors import ArgumentError, DispatchError, TraceError, TypeInferError
from meta.ir import Call
from meta.vm.compiler.code import FusedRef
from meta.vm.inspect.explain import Explanation, FunctionExplanation, _calls


def ones(*shape: int) -> Any:
    return meta.array(np.ones(shape, "float32"))


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], list[str]]] = {
    "an operator": (meta.softmax, (ones(2, 3),), {}, ["softmax"]),
    "whose call is one of its own": (meta.matmul, (ones(2, 3), ones(3, 4)), {}, ["matmul"]),
    "whose call is several": (
        *(meta.matmul, (ones(2, 3, 4), ones(4, 5)), {}),
        ["reshape", "matmul", "reshape"],
    ),
    "a list": (meta.concat, ([ones(2), ones(3)],), {"axis": 0}, ["concat"]),
    "types": (
        *(meta.matmul, (meta.ir.parse_type("float32[5, 2, 3]"), ones(3, 4)), {}),
        ["reshape", "matmul", "reshape"],
    ),
    "a function": (
        lambda x, by: (x * by).sum(axis=0),
        (ones(2, 3),),
        {"by": 2.0},
        ["multiply", "sum"],
    ),
    "promoted": (lambda x, y: x + y, (ones(2), meta.array([1, 2])), {}, ["astype", "add"]),
    "no operator": (lambda x: x, (ones(2),), {}, []),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_is_explained(name: str) -> None:
    function, args, kwargs, expected = CALLS[name]
    found = meta.explain(function, *args, **kwargs)
    entries = [found] if isinstance(found, Explanation) else found
    assert isinstance(found, Explanation) == (
        isinstance(function, meta.op.core.Op) and len(expected) == 1
    )
    assert [e.title.partition("(")[0] for e in entries] == expected
    for entry in entries:
        assert entry.title in str(found) and entry.title.split()[0] in found._repr_html_()
        assert entry.chosen is not None or "is a view" in entry.title


def test_the_choice_is_that_of_the_call() -> None:
    x, w = ones(2, 3, 4), ones(4, 5)
    with meta.dialect.only("tvm"):
        found = meta.explain(meta.matmul, x, w)
    assert isinstance(found, FunctionExplanation)
    assert found[1].chosen is not None and found[1].chosen.dialect_op.dialect.name == "tvm"
    assert [r["call"] for r in found.records()] == [e.title for e in found]


def test_what_cannot_be_explained() -> None:
    with pytest.raises(ArgumentError, match="explain needs an operator, or a function"):
        meta.explain(3, ones(2))  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="asked for the number"):
        meta.explain(lambda x: float(x), ones())
    with pytest.raises((TypeInferError, DispatchError)):
        meta.explain(meta.matmul, ones(2, 3), ones(4, 5))


def test_a_kernel_of_calls_with_several_results() -> None:
    def traced(x: Any, w: Any, b: Any) -> Any:
        y, mean, inv = meta.op.layer_norm_train(x, w, b)
        return meta.op.relu(y), mean, inv

    program = meta.model.trace(traced).program(ones(2, 3), ones(3), ones(3)).module
    assert any(not isinstance(b.value, Call) for b in program.main.body.bindings)
    site: Any = SimpleNamespace(kernel=FusedRef("mine", "fused"))
    found = _calls(site, {"fused": program.main}, CPU)
    assert [call.op.name for call in found] == ["layer_norm_train", "relu"]
