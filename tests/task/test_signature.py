"""Signatures of tasks follow from schema and gradient, for every operator that there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.dtype import has_gradient
from meta.base.errors import ArgumentError, GradientError, TypeInferError
from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.ir.types import TensorType
from meta.op.core import Op
from meta.op.core.call import result_types
from meta.op.core.op import by_schema
from meta.runtime.ndarray import as_array, ndarray
from meta.task import OpTaskBinding, OpTaskInvocation, OpTaskSignature
from meta.testing.case import OpCase
from tests.op.records import CASES
from tests.together import together

X = TensorType((2, 4), "float32")
DIFFERENTIABLE = {
    case.op: case
    for case in CASES
    if case.grad and any(one.has_floats for one in case.samples) and case.op in OPERATORS
}


@together(sorted(OPERATORS))
def test_every_operator_has_consistent_signatures(name: str) -> None:
    base = OPERATORS[name]
    rule = base.aspects.gradient
    for phase in ("init", "forward", "backward"):
        if phase == "backward" and (rule is None or rule.function is None):
            assert base.signature(phase) == ()
            with pytest.raises(GradientError, match="no backward task"):
                OpTaskSignature.of(base, phase)
            continue
        signature = OpTaskSignature.of(base, phase)
        slots = [(s.name, s.access) for s in signature.slots]
        assert tuple(slots) == base.signature(phase)
        assert len(dict(slots)) == len(slots)  # each name once
        assert {s.access for s in signature.slots} <= {"RO", "WO", "RW"}
        for slot in signature.slots:
            assert (slot.slot is None) == (slot.of == "out")
            assert slot.role == "gradient" or slot.slot is None or slot.slot.name == slot.name
        if phase == "init":
            assert [s.name for s in base.slots if s.kind == "attribute"] == [n for n, _ in slots]
        elif phase == "forward":
            read = [(s.name, s.access) for s in base.slots if s.kind != "attribute"]
            assert slots == [*read, (base.schema.reserved("out"), "WO")]
        else:
            kept = {n for n, _, type_only in rule.kept if not type_only}
            reads = {s.name for s in signature.reads}
            assert reads <= kept | {rule.dy} and rule.dy in reads
            read_only = [s for s in base.slots if s.is_tensor and s.access == "RO"]
            assert [s.of for s in signature.writes] == [s.name for s in read_only]
            assert {s.role for s in signature.writes} <= {"gradient"}


@pytest.mark.parametrize("name", sorted(DIFFERENTIABLE))
def test_backward_tasks_are_the_gradients(name: str) -> None:
    """The derived tasks give what calls and the tape give, and the signature says of what."""
    case: OpCase = DIFFERENTIABLE[name]
    one = next(one for one in case.samples if one.has_floats)
    base = OPERATORS[name]
    with only("torch"):
        args = bound(base, *one.make("float64"))
        binding = OpTaskBinding(OpTaskSignature.of(base, "forward"))
        for slot, value in zip(base.slots, bound(base, *one.make("float64")), strict=True):
            if slot.is_tensor and not isinstance(value, bool | int | float):
                binding.bind(slot.name, value)
            else:
                binding.bind_arg(slot.name, value)
        task = OpTaskInvocation(binding.signature, binding)
        read_only = tuple(a for a, s in zip(args, base.slots, strict=True) if s.access == "RO")
        tracked = [a for a in arrays(read_only) if has_gradient(str(a.dtype))]
        for a in tracked:
            a.requires_grad = True
        y = by_schema(base)(*args)
        types = result_types(base.infer(tuple(map(type_of, args))))
        own = y[: len(types)] if isinstance(y, tuple) else (y,)
        dys = [meta.ones_like(r) for r in own]
        seeds = [p for p in zip(own, dys, strict=True) if has_gradient(str(p[0].dtype))]
        expected = meta.grad.grad([r for r, _ in seeds], tracked, [d for _, d in seeds])
        again = task.run() if base.random else None
        backward = task.backward(tuple(dys) if len(dys) > 1 else dys[0], again)
        found = backward.run()
        assert sorted(found) == sorted(s.of for s in backward.signature.writes)
        flat = arrays(tuple(found.values()))
        assert len(flat) == len(tracked)
        for ours, theirs in zip(flat, expected, strict=True):
            torch.testing.assert_close(ours.torch(), theirs.torch(), equal_nan=True)


def bound(base: Op, args: Any, kwargs: Any) -> tuple[Any, ...]:
    return base.schema.bind(args, kwargs, lambda t: as_array(t.clone()))


def type_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(type_of, value))
    return TensorType(value.shape, str(value.dtype)) if isinstance(value, ndarray) else value


def arrays(value: Any) -> list[ndarray]:
    if isinstance(value, tuple):
        return [a for v in value for a in arrays(v)]
    return [value] if isinstance(value, ndarray) else []


def test_of_a_call_there_is_what_is_bound() -> None:
    norm = OpTaskSignature.of(meta.op.layer_norm, "backward", X, TensorType((4,), "float32"))
    assert [s.name for s in norm.slots] == ["x", "scale", "dy", "dx", "dscale"]
    assert [s.role for s in norm.slots] == ["input", "weight", *["gradient"] * 3]
    rows = OpTaskSignature.of(meta.op.take, "backward", X, TensorType((3,), "int64"), 0)
    assert [s.of for s in rows.writes] == ["x"]
    assert [s.name for s in OpTaskSignature.of(meta.op.layer_norm, "forward", X).slots] == [
        "x",
        "out",
    ]
    integers = OpTaskSignature.of(meta.op.abs, "backward", X.with_dtype("int32"))
    assert integers.writes == ()


def test_names_stay_unique() -> None:
    """The gradient of ``y`` is not ``dy``, where an argument has that name."""
    second = OpTaskSignature.of(meta.op.softmax_dx, "backward")
    assert {s.name: s.of for s in second.writes} == {"dy__": "y", "ddy": "dy"}
    assert second.gradient_of("out").name == "dy_"


def test_arrays_count_as_their_types() -> None:
    x = meta.ones((2, 4))
    assert OpTaskSignature.of(meta.op.softmax, "forward", x, axis=0) == OpTaskSignature.of(
        meta.op.softmax, "forward", X, axis=0
    )


def test_written_arguments_are_read_and_written() -> None:
    norm = OpTaskSignature.of(meta.op.batch_norm_train, "forward")
    assert [s.name for s in norm.writes] == ["running_mean", "running_var", "out"]
    assert [s.name for s in norm.reads][:3] == ["x", "running_mean", "running_var"]


def test_text() -> None:
    assert str(OpTaskSignature.of(meta.op.prelu, "forward")) == (
        "prelu.forward(x (RO input), weight (RO weight), out (WO output))"
    )


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="unknown phase"):
        OpTaskSignature.of(meta.op.relu, "sideways")
    with pytest.raises(GradientError, match=r"(?s)argmax.*no backward task"):
        OpTaskSignature.of(meta.op.argmax, "backward")
    with pytest.raises(TypeInferError, match="floating point"):
        OpTaskSignature.of(meta.op.softmax, "forward", X.with_dtype("int32"))
    with pytest.raises(ArgumentError, match=r"(?s)relu, backward task.*no slot 'dx_'.*'dx'"):
        OpTaskSignature.of(meta.op.relu, "backward")["dx_"]
