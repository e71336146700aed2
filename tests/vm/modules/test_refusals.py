"""What a compiled module refuses: inputs and buffers that do not fit, or that share memory."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, DeviceError, GradientError, MetaError, UnknownName
from meta.ir import parse_type
from meta.model import trace
from tests.vm.modules.networks import CASES, compiled, made

TYPES = parse_type("float32[n, 3]"), parse_type("float32[n, 3]"), parse_type("float32[2, n]")


@pytest.fixture(scope="module")
def summed() -> Any:
    @trace
    def function(a: Any, b: Any, c: Any) -> Any:
        return {"sum": a + b + c.T.sum(axis=1, keepdims=True), "row": meta.ones((3,))}

    return meta.compile_model(function, *TYPES, dims={"n": (2, 8)})


A = torch.zeros(4, 3)
C = torch.zeros(2, 4)
WRONG: dict[str, tuple[Any, Any, type[MetaError], str]] = {
    "missing": ({"a": A, "b": A}, None, ArgumentError, r"inputs are missing\n.*\n.*no c"),
    "unknown": ({"a": A, "b": A, "d": C}, None, UnknownName, "no input 'd'"),
    "too few": ([A, A], None, ArgumentError, r"not as many inputs .*\n.*3: a, b, c\n.*2"),
    "no list": (A, None, ArgumentError, r"inputs are a list, or a dict by name"),
    "no tensor": ([A, 1.0, C], None, ArgumentError, "input 'b' is no tensor"),
    "dtype": ([A, A.double(), C], None, ArgumentError, r"input 'b' has another dtype\n.*float32"),
    "rank": ([A, A[0], C], None, ArgumentError, r"'b' has another number of axes\n.*2.*\n.*1"),
    "fixed": (
        [A, torch.zeros(4, 2), C], None, ArgumentError,
        r"input 'b' has another extent along axis 1\n.*3, as it is float32\[n, 3\]\n.*2 in",
    ),
    "two extents": (
        [A, torch.zeros(5, 3), C], None, ArgumentError,
        r"'n' has two extents\n.*4, as axis 0 of input 'a'\n.*5 along axis 0 of input 'b'",
    ),
    "range": (
        [torch.zeros(9, 3), torch.zeros(9, 3), torch.zeros(2, 9)], None, ArgumentError,
        r"input 'a': dimension 'n', axis 0, is out of range\n.*2 to 8\n.*9",
    ),
    "device": ([A, A, C.to("meta")], None, MetaError, "device"),
    "buffers by name": ([A, A, C], {"sum": A}, ArgumentError, "outputs are missing"),
    "unknown buffer": ([A, A, C], {"sum": None, "rows": None}, UnknownName, "no output 'rows'"),
    "small": (
        [A, A, C], [torch.zeros(3, 3), None], ArgumentError,
        r"output 'sum' does not fit along axis 0\n.*n = 4, or more.*\n.*3 in shape",
    ),
    "fixed axis": (
        [A, A, C], [torch.zeros(4, 4), None], ArgumentError,
        r"output 'sum' does not fit along axis 1\n.*3, as the result",
    ),
    "buffer dtype": (
        [A, A, C], [torch.zeros(4, 3).double(), None], ArgumentError, "'sum' has another dtype"
    ),
    "buffer rank": ([A, A, C], [A[0].clone(), None], ArgumentError, "'sum' has another number"),
    "strided": (
        [A, A, C], [torch.zeros(3, 4).T, None], ArgumentError, r"output 'sum' is not contiguous"
    ),
    "expanded": (
        [A, A, C], [torch.zeros(1, 3).expand(4, 3), None], ArgumentError, "output|this array"
    ),
    "trained": (
        [A, A, C], [torch.zeros(4, 3, requires_grad=True), None], ArgumentError, "'sum' requires a"
    ),
    "read-only": (
        [A, A, C], [np.broadcast_to(np.float32(0), (4, 3)), None], ArgumentError, "read-only"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit(summed: Any, name: str) -> None:
    inputs, outputs, kind, message = WRONG[name]
    with pytest.raises(kind) as caught:
        summed.run_with_tensors(inputs, outputs)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_aliases_are_refused(summed: Any) -> None:
    a, b, c = torch.zeros(4, 3), torch.zeros(4, 3), torch.zeros(2, 4)
    whole = torch.zeros(40)
    shared = torch.from_dlpack(whole.numpy())  # other storage, the same memory
    for inputs, outputs, message in (
        ([a, b, c], [a, None], "output 'sum' shares memory with input 'a'"),
        ([a, b, c], {"row": b[1], "sum": None}, "output 'row' shares memory with input 'b'"),
        (
            [a, b, c], [whole[:12].view(4, 3), whole[11:14]],
            "output 'row' shares memory with output 'sum'",
        ),
        (
            [whole[2:14].view(4, 3), b, c], [shared[:12].view(4, 3), None],
            "output 'sum' shares memory with input 'a'",
        ),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            summed.run_with_tensors(inputs, outputs)
    found = summed.run_with_tensors([a, b, c], [whole[:12].view(4, 3), whole[12:15]])
    assert found["row"].tolist() == [1.0, 1.0, 1.0]


def test_constants_are_no_buffers() -> None:
    model = made(CASES["mlp"])
    module = compiled(CASES["mlp"], model, dynamic=False)
    buffers = {"logits": model.last.weight.torch().detach()[:, :3], "hidden": None}
    with pytest.raises(ArgumentError, match=r"contiguous|shares memory with a constant"):
        module.run_with_tensors(CASES["mlp"].inputs(3), buffers)
    buffers["logits"] = model.last.weight.torch().detach().view(-1)[1:10].view(3, 3)
    with pytest.raises(ArgumentError, match="'logits' shares memory with a constant of the module"):
        module.run_with_tensors(CASES["mlp"].inputs(3), buffers)


def test_tensors_that_are_not_what_they_seem() -> None:
    """Lazily conjugated, negated, sparse, or made where nothing counts writes."""

    @trace
    def function(x: Any) -> Any:
        return x * 2.0

    x = torch.ones(2, 3)
    module = meta.compile_model(function, x)
    seen = module.run_with_tensors([torch._neg_view(x)])["output"]
    assert seen.tolist() == [[-2.0] * 3] * 2
    with pytest.raises(GradientError, match="a compiled program records nothing"):
        module.run_with_tensors([x.clone().requires_grad_()])
    with torch.no_grad():
        seen = module.run_with_tensors([x.clone().requires_grad_()])["output"]
    assert seen.tolist() == [[2.0] * 3] * 2
    with pytest.raises(ArgumentError, match="output 'output' is a view whose memory does not"):
        module.run_with_tensors([x], [torch._neg_view(x)])
    with pytest.raises(ArgumentError, match="input 'x': a tensor of this layout"):
        module.run_with_tensors([x.to_sparse()])
    with pytest.raises(DeviceError, match="input 'x': unknown device"):
        module.run_with_tensors([x.to("meta")])
    with torch.inference_mode():
        made_there = torch.empty(2, 3)
        module.run_with_tensors([x], [made_there])
    assert made_there.tolist() == [[2.0] * 3] * 2
    with pytest.raises(ArgumentError, match=r"output 'output': .*inference_mode"):
        module.run_with_tensors([x], [made_there])
