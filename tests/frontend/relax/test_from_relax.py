"""Programs: functions, branches, tuples, shapes, weights, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax as R
from tvm import tirx

import meta
from meta.frontend import from_relax
from meta.frontend.relax import RelaxError, operators

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def run(model: Any, *inputs: Any) -> Any:
    with meta.dialect.prefer("torch"):
        found = model(*(meta.array(x) for x in inputs))
    return tuple(f.numpy() for f in found) if isinstance(found, tuple) else found.numpy()


def var(name: str, *shape: Any, dtype: str = "float32") -> Any:
    return R.Var(name, R.TensorType(shape, dtype))


def linear() -> tvm.IRModule:
    builder, x, w, b = R.BlockBuilder(), var("x", 2, 3), var("fc.weight", 3, 4), var("fc.bias", 4)
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            y = builder.emit(R.op.add(R.op.matmul(x, w), b))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


WEIGHTS = {"fc.weight": np.ones((3, 4), np.float32), "fc.bias": np.arange(4, dtype=np.float32)}
WANTED = X @ WEIGHTS["fc.weight"] + WEIGHTS["fc.bias"]


def test_weights_by_name_by_place_and_as_inputs() -> None:
    module = linear()
    model = from_relax(module, WEIGHTS)
    np.testing.assert_allclose(run(model, X), WANTED)
    assert list(dict(model.named_parameters())) == ["fc.weight", "fc.bias"]
    assert model.input_names == ("x",)
    np.testing.assert_allclose(run(from_relax(module, list(WEIGHTS.values())), X), WANTED)
    trained = {n: torch.nn.Parameter(torch.from_numpy(w)) for n, w in WEIGHTS.items()}
    np.testing.assert_allclose(run(from_relax(module, trained), X), WANTED)
    np.testing.assert_allclose(run(from_relax(module), X, *WEIGHTS.values()), WANTED)
    first = from_relax(module, {"x": X})
    np.testing.assert_allclose(run(first, *WEIGHTS.values()), WANTED)
    with pytest.raises(RelaxError, match=r"no parameter 'fc\.wieght'"):
        from_relax(module, {"fc.wieght": X})


def test_it_is_a_model() -> None:
    model = from_relax(linear(), WEIGHTS)
    with meta.dialect.prefer("torch"):
        compiled = meta.vm.compile(model, meta.array(X))
        np.testing.assert_allclose(compiled(meta.array(X)).numpy(), WANTED)
        model.train()
        model(meta.array(X)).backward(meta.array(np.ones((2, 4), np.float32)))
    np.testing.assert_allclose(model.state()["fc.bias"].grad.numpy(), np.full(4, 2.0))


def test_a_long_import_shows_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[Any, ...]] = []
    updates: list[int] = []

    class Recorded:
        def __init__(self, *given: Any, **options: Any) -> None:
            shown.append(given)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def update(self) -> None:
            updates.append(1)

    monkeypatch.setattr("meta.frontend.relax.model.bar", Recorded)
    np.testing.assert_allclose(run(from_relax(linear(), WEIGHTS), X), WANTED)
    assert shown[0] == (3, "converting") and sum(updates) == 3


def test_symbolic_shapes_take_the_arguments_extents() -> None:
    n = tirx.Var("n", "int64")
    builder, x = R.BlockBuilder(), var("x", n, 3)
    with builder.function("main", [x]):
        y = builder.emit(R.op.reshape(x, R.ShapeExpr([n * 3])))
        z = builder.emit(R.op.full(R.ShapeExpr([n + 1, n // 2]), R.const(1.0, "float32")))
        s = builder.emit(R.op.shape_to_tensor(R.op.shape_of(y)))
        builder.emit_func_output(builder.emit(R.Tuple([y, z, s])))
    model = from_relax(builder.get())
    for rows in (2, 5):
        data = np.ones((rows, 3), np.float32)
        y, z, s = run(model, data)
        assert (y.shape, z.shape, s.tolist()) == ((3 * rows,), (rows + 1, rows // 2), [3 * rows])
    with pytest.raises(RelaxError, match="has the shape"):
        run(model, np.ones((2, 4), np.float32))
    with pytest.raises(RelaxError, match="axes"):
        run(model, np.ones(3, np.float32))
    with pytest.raises(RelaxError, match="of float32, here of int64"):
        run(model, np.ones((2, 3), np.int64))


def test_inner_functions_see_extents_and_numbers() -> None:
    n = tirx.Var("n", "int64")
    x, z, rows = var("x", n, 3), var("z", 3), R.Var("rows", tvm.ir.PrimType("int64"))
    ones = R.op.full(R.ShapeExpr([n, 3]), R.const(1.0, "float32"))
    inside = R.Function([z], R.SeqExpr([], R.op.add(ones, z)), R.TensorType((n, 3), "float32"))
    builder = R.BlockBuilder()
    with builder.function("many", [rows]):
        builder.emit_func_output(
            builder.emit(R.op.full(R.ShapeExpr([rows]), R.const(2.0, "float32")))
        )
    many = builder.get().get_global_var("many")
    with builder.function("main", [x]):
        function = builder.emit(inside)
        y = builder.emit(R.Call(function, [R.const(np.arange(3, dtype=np.float32))]))
        w = builder.emit(R.Call(many, [R.prim_value(n + 1)]))
        builder.emit_func_output(builder.emit(R.Tuple([y, w])))
    y, w = run(from_relax(builder.get()), X)
    np.testing.assert_array_equal(y, np.ones((2, 3)) + np.arange(3))
    np.testing.assert_array_equal(w, np.full(3, 2.0))


def test_functions_branches_and_tuples() -> None:
    builder = R.BlockBuilder()
    a = var("a", 2, 3)
    with builder.function("doubled", [a]):
        builder.emit_func_output(builder.emit(R.op.add(a, a)))
    doubled = builder.get().get_global_var("doubled")
    c, x = var("c", dtype="bool"), var("x", 2, 3)
    with builder.function("main", [c, x]):
        y = builder.emit(R.Call(doubled, [x]))
        pair = builder.emit(R.Tuple([y, R.op.negative(x)]))
        branches = [R.SeqExpr([], R.op.abs(R.TupleGetItem(pair, i))) for i in range(2)]
        builder.emit_func_output(builder.emit(R.If(c, *branches)))
    module = builder.get()
    assert operators(module) == {"add": 1, "negative": 1, "abs": 2}
    model = from_relax(module)
    np.testing.assert_allclose(run(model, np.array(True), X), abs(2 * X))
    np.testing.assert_allclose(run(model, np.array(False), X), abs(X))


def test_what_follows_from_constants_is_known() -> None:
    """The bounds of the slice are computed, and the branch is chosen, while converting."""
    builder, x = R.BlockBuilder(), var("x", 4, 3)
    with builder.function("main", [x]):
        extents = builder.emit(R.op.shape_to_tensor(R.op.shape_of(x)))
        half = builder.emit(R.op.floor_divide(extents, R.const([2, 1], "int64")))
        zero, one = R.const([0, 0], "int64"), R.const([1, 1], "int64")
        builder.emit_func_output(builder.emit(R.op.dynamic_strided_slice(x, zero, half, one)))
    model = from_relax(builder.get())
    x = np.ones((4, 3), np.float32)
    assert run(model, x).shape == (2, 3)
    assert "dynamic" not in str(model.program(meta.array(x)).module)


def test_all_that_is_not_supported_is_listed() -> None:
    builder, x = R.BlockBuilder(), var("x", 2, 3)
    with builder.function("main", [x]):
        for _ in range(2):
            builder.emit(R.op.print(x, format="{}"))
        y = builder.emit_te(lambda t: tvm.topi.add(t, t), x)
        builder.emit_func_output(y)
    with pytest.raises(RelaxError, match="3 calls") as error:
        from_relax(builder.get())
    assert "print, 2 times: it has an effect" in str(error.value)
    assert "call_tir, once: of a function in TIR" in str(error.value)


def test_attributes_that_are_not_supported_are_listed_together() -> None:
    builder, x, i = R.BlockBuilder(), var("x", 2, 3), var("i", 2, dtype="int64")
    with builder.function("main", [x, i]):
        y = builder.emit(R.op.take(x, i, 0, "nan"))
        z = builder.emit(R.op.nn.pad(y, (0, 0, 1, 1), "strange"))
        builder.emit_func_output(builder.emit(R.op.negative(z)))
    model = from_relax(builder.get())
    with pytest.raises(RelaxError, match="2 calls") as error:
        run(model, X, np.array([0, 1]))
    assert "take, once, first at " in str(error.value)
    assert "the padding mode 'strange'" in str(error.value)


def test_recursion_is_refused() -> None:
    builder = R.BlockBuilder()
    a = var("a", 2, 3)
    name = builder.add_func(
        R.Function([a], R.SeqExpr([], a), R.TensorType((2, 3), "float32")), "again"
    )
    call = R.Call(name, [a])
    builder.update_func(name, R.Function([a], call, R.TensorType((2, 3), "float32")))
    x = var("x", 2, 3)
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(R.Call(name, [x])))
    with pytest.raises(RelaxError, match="calls itself"):
        run(from_relax(builder.get()), X)


@pytest.mark.parametrize("wrong", [None, "main", tvm.IRModule({})])
def test_what_is_no_module(wrong: Any) -> None:
    with pytest.raises(meta.errors.ArgumentError, match="a function main"):
        from_relax(wrong)
