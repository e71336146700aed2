"""Tracing: when a program is made anew, what may go in and out, and what cannot be traced."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import weakref
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError, GradientError, MetaError, TraceError, TypeInferError
from meta.ir import verify
from meta.model import Linear, Model, ReLU, Sequential, trace
from meta.model.trace import Traced
from meta.testing import check

Point = namedtuple("Point", ["x", "y"])


def ones(*shape: int, dtype: str = "float32") -> meta.ndarray:
    return meta.array(np.ones(shape), dtype)


def both(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a traced function or model under both executors, which must agree; return one result."""
    found = function(*args, **kwargs)
    compiled = meta.vm.compile(function, *args, **kwargs)(*args, **kwargs)
    check(meta.op.core.tree.flatten(compiled)[0], meta.op.core.tree.flatten(found)[0], 1e-6, 1e-6)
    shape = lambda r: meta.op.core.tree.fingerprint(meta.op.core.tree.flatten(r)[1])  # noqa: E731
    assert shape(found) == shape(compiled)
    verify(function.program(*args, **kwargs).module, typed=True)
    return found


# When a program is made anew.


class Scale(Model):
    def build(self, factor: Any) -> None:
        self.factor = factor

    @trace
    def forward(self, x: Any, power: Any = 1) -> Any:
        return op.multiply(op.pow(x, power), self.factor)


def programs(model: Model) -> int:
    return len(model.forward.programs)


@pytest.mark.parametrize(
    "other",
    [
        (ones(3), 2),
        (ones(4), 2.0),
        (ones(4), True),
        (ones(1, 4), 2),
        (ones(4, dtype="float64"), 2),
        (meta.ndarray(torch.ones(8)[::2]), 2),
        (ones(4),),
    ],
    ids=["shape", "float", "bool", "ndim", "dtype", "strides", "default"],
)
def test_another_signature_is_traced_anew(other: tuple[Any, ...]) -> None:
    model = Scale(2.0)
    model(ones(4), 2)
    model(ones(4), power=2)
    model(np.ones(4, "float32"), 2)
    assert programs(model) == 1
    model(*other)
    assert programs(model) == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (2.0, 3.0),
        (2.0, 2),
        (1, True),
        (0.0, -0.0),
        ([1, 2], [1, 3]),
        ({"a": 1.0}, {"b": 1.0}),
        (None, 1.0),
        (np.float32(2), np.float32(3)),
    ],
)
def test_a_changed_attribute_is_traced_anew(before: Any, after: Any) -> None:
    class Holds(Model):
        def build(self) -> None:
            self.value = before

        @trace
        def forward(self, x: Any) -> Any:
            return op.exp(x)

    model = Holds()
    model(ones(2))
    model.value = before
    model(ones(2))
    assert programs(model) == 1
    model.value = after
    model(ones(2))
    model(ones(2))
    assert programs(model) == 2


def test_nan_and_other_objects_do_not_trace_for_ever() -> None:
    model = Scale(float("nan"))
    model.anything = object()
    for _ in range(3):
        model(ones(2))
    assert programs(model) == 1
    model.anything = object()
    model(ones(2))
    assert programs(model) == 2


def test_the_mode_of_a_model_inside_counts() -> None:
    model = Sequential(meta.model.Dropout(0.5), ReLU())
    model(ones(4))
    assert model.eval() is model
    assert not getattr(model, "0").training
    assert (model(ones(4)).numpy() == 1).all()
    model.train()
    model(ones(4))
    assert programs(model) == 2


def test_a_replaced_layer_is_traced_anew() -> None:
    class Twice(Model):
        @trace
        def forward(self, x: Any) -> Any:
            return x * 2.0

    class Thrice(Model):
        @trace
        def forward(self, x: Any) -> Any:
            return x * 3.0

    model = Sequential(Twice())
    assert model(ones(1)).item() == 2.0
    setattr(model, "0", Thrice())
    assert model(ones(1)).item() == 3.0


def test_a_replaced_array_is_read() -> None:
    model = Scale(ones(2))
    assert model(ones(2)).numpy().tolist() == [1, 1]
    model.factor = ones(2) * 5.0
    assert model(ones(2)).numpy().tolist() == [5, 5]
    model.factor = ones(3)
    assert model(ones(1)).shape == (3,)


def test_an_updated_array_needs_no_new_trace() -> None:
    model = Scale(ones(2))
    model(ones(2))
    compiled = meta.vm.compile(model, ones(2))
    model.factor.update([3.0, 4.0])
    assert model(ones(2)).numpy().tolist() == [3, 4]
    assert compiled(ones(2)).numpy().tolist() == [3, 4]
    assert programs(model) == 1


def test_models_have_programs_of_their_own() -> None:
    one, two = Scale(1.0), Scale(2.0)
    assert (one(ones(1)).item(), two(ones(1)).item()) == (1.0, 2.0)
    assert programs(one) == programs(two) == 1


# What goes in and out.


def test_tuples_lists_dicts_and_named_tuples() -> None:
    @trace
    def f(a: Any, b: Any, c: Any) -> Any:
        x, y = a
        return {
            "sum": x + y,
            "list": [b["k"][0], b["n"]],
            "point": Point(c.x * 2.0, c.y),
            "nested": ((x,), [], None, "text", 5),
        }

    result = both(
        f,
        (ones(2), np.ones(2, "float32")),
        OrderedDict(k=[torch.full((2,), 3.0)], n=7),
        Point(ones(1), "tag"),
    )
    assert result["sum"].numpy().tolist() == [2, 2]
    assert result["list"][0].numpy().tolist() == [3, 3]
    assert result["list"][1] == 7
    assert isinstance(result["point"], Point)
    assert result["point"].y == "tag"
    assert result["nested"][1:] == ([], None, "text", 5)


def test_a_result_without_arrays() -> None:
    @trace
    def nothing(x: Any) -> Any:
        return None

    @trace
    def number(x: Any) -> Any:
        return x.shape[0]

    assert both(nothing, ones(2)) is None
    assert both(number, ones(2)) == 2


def test_an_argument_and_a_constant_as_results() -> None:
    constant = ones(2)

    @trace
    def f(x: Any) -> Any:
        return x, constant, x, (constant, op.reshape(constant, (2, 1)))

    x = ones(3)
    first = both(f, x)
    assert first[0].shape == first[2].shape == (3,)
    compiled = meta.vm.compile(f, x)
    for run in (f, compiled):
        run(x)[1].update([9.0, 9.0])
        run(x)[3][0].update([9.0, 9.0])
        assert run(x)[1].numpy().tolist() == [1, 1], "a constant of the program was written"


def test_constants_are_copies() -> None:
    ours, numpy, torchs = ones(2), np.ones(2, "float32"), torch.ones(2)

    @trace
    def f(x: Any) -> Any:
        return x + ours + numpy + torchs

    assert both(f, ones(2)).numpy().tolist() == [4, 4]
    ours.update([5.0, 5.0])
    numpy[:] = 5
    torchs[:] = 5
    assert both(f, ones(2)).numpy().tolist() == [4, 4]


def test_keywords_defaults_and_any_number_of_arguments() -> None:
    @trace
    def f(x: Any, y: Any = None, *, scale: float = 1.0, **rest: Any) -> Any:
        z = x if y is None else x + y
        return [z * scale, *(v * 10.0 for v in rest.values())]

    @trace
    def add_all(*xs: Any) -> Any:
        result = xs[0]
        for x in xs[1:]:
            result = result + x
        return result

    assert both(f, ones(1))[0].item() == 1.0
    assert both(f, ones(1), y=ones(1), scale=3.0)[0].item() == 6.0
    assert both(f, x=ones(1), extra=ones(1))[1].item() == 10.0
    assert both(add_all, ones(1), ones(1), ones(1)).item() == 3.0


def test_python_values_choose_the_program() -> None:
    @trace
    def f(x: Any, kind: str, at: Any) -> Any:
        return (op.exp if kind == "exp" else op.negative)(x)[at]

    assert both(f, ones(3), "exp", slice(0, 1)).shape == (1,)
    assert both(f, ones(3), "negative", 2).item() == -1.0
    f(ones(3), "exp", slice(0, 1))
    assert len(f.programs) == 2


def test_what_depends_on_shapes_may_be_decided_in_python() -> None:
    @trace
    def f(x: Any) -> Any:
        total = x[0]
        for row in range(1, len(x)):
            total = total + x[row] * float(row)
        for row in x:
            total = total + row
        return total if x.ndim == 2 and x.size > 2 else -total

    x = meta.array(np.arange(6.0), "float32").numpy().reshape(3, 2)
    expected = (x * [[1], [1], [2]]).sum(0) + x.sum(0)
    assert both(f, x).numpy().tolist() == expected.tolist()


def test_nested_calls_are_inlined() -> None:
    inner = Linear(2, 2)

    @trace
    def helper(x: Any) -> Any:
        return op.relu(x)

    class Outer(Model):
        def build(self) -> None:
            self.inner = inner

        @trace
        def forward(self, x: Any) -> Any:
            return helper(self.inner(helper(x)))

    model = Outer()
    both(model, ones(1, 2))
    program = model.program(ones(1, 2))
    names = [b.value.callee.name for b in program.module.main.body.bindings]
    assert names == ["relu", "dense", "add", "relu"]
    assert not inner.forward.programs
    assert not helper.programs
    assert [p.name for p in program.module.main.params] == ["x", "inner.weight", "inner.bias"]


def test_parameters_that_are_not_used_are_not_passed() -> None:
    class Half(Model):
        def build(self) -> None:
            self.used, self.unused = ones(1), ones(1)

        @trace
        def forward(self, x: Any) -> Any:
            return x * self.used

    assert len(Half().program(ones(1)).arrays) == 1


def test_shared_weights_get_one_gradient() -> None:
    class Tied(Model):
        def build(self) -> None:
            self.encoder = Linear(2, 2, bias=False)
            self.decoder = self.encoder
            self.again = {"w": self.encoder.weight}

        @trace
        def forward(self, x: Any) -> Any:
            return op.sum(op.dense(self.decoder(self.encoder(x)), self.again["w"]))

    model = Tied()
    assert list(model.state()) == ["encoder.weight"]
    x = ones(1, 2)
    w = model.encoder.weight.detach().torch().clone().requires_grad_()
    (x.torch() @ w.T @ w.T @ w.T).sum().backward()
    model(x).backward()
    check(model.encoder.weight.grad, w.grad)
    _, gradients = meta.vm.compile(meta.model.value_and_grad(model), meta.array(1.0), x)(
        meta.array(1.0), x
    )
    assert list(gradients) == ["encoder.weight"]
    check(gradients["encoder.weight"], w.grad)


def test_models_in_containers() -> None:
    class Holds(Model):
        def build(self) -> None:
            self.layers = [Linear(2, 2), (Linear(2, 2), {"last": Linear(2, 1)})]
            self.pair = Point(ones(1), ones(1))

        @trace
        def forward(self, x: Any) -> Any:
            x = self.layers[1][0](self.layers[0](x))
            return self.layers[1][1]["last"](x) + self.pair.x

    model = Holds()
    assert list(model.state()) == [
        "layers.0.weight", "layers.0.bias", "layers.1.0.weight", "layers.1.0.bias",
        "layers.1.1.last.weight", "layers.1.1.last.bias", "pair.0", "pair.1",
    ]  # fmt: skip
    assert len(model.models()) == 4
    assert not model.eval().layers[1][1]["last"].training
    both(model, ones(3, 2))
    model.to(dtype="float64")
    assert {a.dtype for a in model.state().values()} == {"float64"}
    assert isinstance(model.pair, Point)
    assert model(ones(3, 2, dtype="float64")).dtype == "float64"


def test_running_statistics_are_written() -> None:
    model = meta.model.BatchNorm(3)
    x = meta.random.normal((4, 3, 2), mean=5.0)
    x.requires_grad = True
    model(x)
    once = model.running_mean.numpy()
    assert (once > 0).all()
    compiled = meta.vm.compile(model, x)
    compiled(x)
    assert (model.running_mean.numpy() > once).all()
    model.eval()
    before = model.running_mean.numpy()
    model(x)
    assert (model.running_mean.numpy() == before).all()


def test_random_operators_draw_anew_at_every_run() -> None:
    model = meta.model.Dropout(0.5)
    x = ones(64)
    compiled = meta.vm.compile(model, x)
    for run in (model, compiled):
        assert (run(x).numpy() != run(x).numpy()).any()
    meta.random.seed(3)
    first = compiled(x).numpy()
    meta.random.seed(3)
    assert (compiled(x).numpy() == first).all()


def test_a_method_that_extends_another_is_traced_once() -> None:
    class More(Scale):
        @trace
        def forward(self, x: Any, power: Any = 1) -> Any:
            return super().forward(x, power) + 1.0

    model = More(2.0)
    for _ in range(3):
        assert model(ones(1)).item() == 3.0
    assert programs(model) == 1


def test_a_model_is_freed_without_the_collector() -> None:
    model = Linear(2, 2)
    model(ones(1, 2))
    run = meta.vm.compile(model, ones(1, 2))
    run(ones(1, 2))
    reference, weights = weakref.ref(model.forward), weakref.ref(model.weight.tensor)
    gc.collect()
    gc.disable()
    try:
        del model, run
        assert weights() is None
        assert reference() is None
    finally:
        gc.enable()


def test_a_copy_of_a_model_is_independent() -> None:
    model = Linear(2, 1)
    model.activation, model.tied = op.relu, [model.weight]
    model(ones(1, 2))
    other = copy.deepcopy(model)
    assert other.activation is op.relu
    assert other.tied[0] is other.weight
    other.weight.update([[5.0, 5.0]])
    other.bias.update([0.0])
    assert other(ones(1, 2)).item() == 10.0
    assert model(ones(1, 2)).item() != 10.0
    assert other.weight.requires_grad
    assert meta.vm.compile(other, ones(1, 2))(ones(1, 2)).item() == 10.0


def test_a_traced_method_belongs_to_a_model() -> None:
    class Other:
        @trace
        def forward(self, x: Any) -> Any:
            return x

    with pytest.raises(ArgumentError, match=r"belongs to a meta\.Model"):
        Other().forward(ones(1))


# What cannot be traced.


@pytest.mark.parametrize(
    "decide",
    [
        lambda x: 1 if x else 2,
        lambda x: x > 0.0 and x < 1.0,
        lambda x: bool(x),
    ],
    ids=["if", "and", "bool"],
)
def test_a_decision_by_value(decide: Any) -> None:
    @trace
    def f(x: Any) -> Any:
        decide(x)
        return x

    with pytest.raises(TraceError) as caught:
        f(ones())
    assert "Python decides here" in str(caught.value)
    assert caught.value.span.file == __file__
    assert caught.value.span.line == decide.__code__.co_firstlineno
    for name in ("meta.cond", "meta.while_loop", "meta.scan", "meta.where"):
        assert name in caught.value.hint


@pytest.mark.parametrize(
    "decide",
    [
        lambda x: float(x),
        lambda x: int(x),
        lambda x: range(x),
        lambda x: np.asarray(x),
        lambda x: x.item(),
        lambda x: x.numpy(),
        lambda x: x.torch(),
        lambda x: [1, 2][x],
        lambda x: ones(2)[x:],
    ],
    ids=["float", "int", "range", "asarray", "item", "numpy", "torch", "index", "slice"],
)
def test_the_number_in_a_traced_value(decide: Any) -> None:
    @trace
    def f(x: Any) -> Any:
        decide(x)
        return x

    with pytest.raises(TraceError) as caught:
        f(ones())
    assert "asked for the number in a traced value" in str(caught.value)
    assert caught.value.span.file == __file__
    assert caught.value.span.line == decide.__code__.co_firstlineno
    for name in ("meta.cond", "meta.while_loop", "meta.scan", "meta.where"):
        assert name in caught.value.hint


def test_a_python_loop_by_value() -> None:
    @trace
    def f(x: Any) -> Any:
        while x > 0.0:
            x = x - 1.0
        return x

    with pytest.raises(TraceError, match="Python decides here") as caught:
        f(ones())
    assert caught.value.span.line == f.function.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("name", "here"),
    [("zero_grad", r"optimizer.zero_grad\(\)"), ("modules", r"models\(\)"), ("cuda", 'to."cuda"')],
)
def test_names_of_torch(name: str, here: str) -> None:
    model = Linear(1, 1)
    assert not hasattr(model, name) and not hasattr(model, "other")
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'other'"):
        model.other  # noqa: B018
    with pytest.raises(MetaError, match=rf"no attribute '{name}'[^$]*{here}"):
        getattr(model, name)


def test_a_symbol_that_leaked() -> None:
    leaked = []

    @trace
    def f(x: Any) -> Any:
        leaked.append(x + 1.0)
        return x

    f(ones(2))
    for use in (lambda: op.exp(leaked[0]), lambda: trace(lambda x: x + leaked[0])(ones(2))):
        with pytest.raises(TraceError, match="used outside the function"):
            use()


def test_a_symbol_in_an_attribute() -> None:
    class Keeps(Model):
        def build(self) -> None:
            self.cache = []

        @trace
        def forward(self, x: Any) -> Any:
            self.cache.append(op.exp(x))
            return x

    with pytest.raises(TraceError) as caught:
        Keeps()(ones(2))
    assert "stores a traced value in the attribute 'cache.0'" in str(caught.value)
    assert caught.value.span.file == __file__


def test_writing_to_an_array_that_is_closed_over() -> None:
    state = ones(2)

    @trace
    def f(x: Any) -> Any:
        op.sgd(state, x, ones(2), 0.1, 0.0)
        return x

    with pytest.raises(TraceError, match="only closes over"):
        f(ones(2))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: (meta.random.seed(0), x)[1],
        lambda x: (meta.random.default.key(), x)[1],
    ],
)
def test_random_numbers_drawn_by_python(draw: Any) -> None:
    x = meta.array([1.0, 2.0])
    traced = trace(draw)
    before = meta.runtime.random.default.state()
    for run in (lambda: traced(x), lambda: meta.vm.compile(traced, x)):
        with pytest.raises(TraceError, match="random numbers are drawn while a function is traced"):
            run()
    assert meta.runtime.random.default.state() == before
    draw(x)  # eagerly it is right


def test_layers_are_not_made_in_traced_code() -> None:
    traced = trace(lambda x: Linear(2, 3)(x))
    with pytest.raises(TraceError, match="a parameter is made while a function is traced"):
        traced(ones(1, 2))


def test_random_numbers_from_outside() -> None:
    traced = trace(lambda x, noise: x + noise)
    noise = meta.random.normal((2,))
    x = meta.array([1.0, 2.0])
    np.testing.assert_array_equal(traced(x, noise).numpy(), x.numpy() + noise.numpy())
    constant = trace(lambda x: x + noise)  # drawn before: a constant like any other
    np.testing.assert_array_equal(constant(x).numpy(), x.numpy() + noise.numpy())


class Counting(Model):
    def build(self) -> None:
        self.count = meta.array(0.0)

    @trace
    def forward(self, x: Any, read: Any) -> Any:
        return x + read(self.count)


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda count: count.item(), "values of a model's array are read"),
        (lambda count: float(count), "values of a model's array are read"),
        (lambda count: count.numpy().sum(), "values of a model's array are read"),
        (lambda count: np.asarray(count).sum(), "values of a model's array are read"),
        (lambda count: 1.0 if count else 2.0, "values of a model's array are read"),
        (lambda count: count.update(1.0), r"update\(\) is called while a function is traced"),
    ],
)
def test_a_model_s_array_and_python(read: Any, says: str) -> None:
    model = Counting()
    with pytest.raises(TraceError, match=says):
        model(meta.array([1.0]), read)
    assert model.count.item() == 0.0


def test_an_error_of_a_type_function_names_the_user_s_line() -> None:
    @trace
    def f(x: Any) -> Any:
        return op.softmax(x, axis=5)

    with pytest.raises(TypeInferError) as caught:
        f(ones(2, 3))
    assert caught.value.span.file == __file__
    assert caught.value.span.line == f.function.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((ones(1), 1, 2), {}, "too many positional arguments"),
        ((ones(1),), {"y": 1}, "unexpected keyword argument 'y'"),
    ],
)
def test_a_wrong_arity(args: Any, kwargs: Any, says: str) -> None:
    model = Scale(1.0)
    with pytest.raises(ArgumentError) as caught:
        model(*args, **kwargs)
    assert says in str(caught.value)
    assert "expected: forward(x: Any, power: Any = 1)" in str(caught.value).replace("'", "")
    assert "test_trace.py" in caught.value.hint


def test_another_structure_than_compiled_for() -> None:
    model = Scale(1.0)
    compiled = meta.vm.compile(model, ones(2), 2)
    assert compiled(ones(2), 2).shape == (2,)
    for args in ((ones(2), 3), (ones(2),), ((ones(2), ones(2)), 2)):
        with pytest.raises(TraceError, match="another structure"):
            compiled(*args)
    with pytest.raises(ArgumentError, match="cannot be called like this"):
        compiled()


def test_what_is_no_array() -> None:
    @trace
    def f(x: Any) -> Any:
        return op.exp(x)

    with pytest.raises(ArgumentError):
        f(object())


def test_a_model_without_forward_or_trace() -> None:
    class Empty(Model):
        pass

    class Untraced(Model):
        def forward(self, x: Any) -> Any:
            return op.exp(x)

    with pytest.raises(ArgumentError, match="Empty has no forward"):
        Empty()(1)
    assert Untraced()(ones(1)).size == 1
    for use in (
        lambda: meta.vm.compile(Untraced(), ones(1)),
        lambda: meta.model.value_and_grad(Untraced())(ones(1), ones(1)),
    ):
        with pytest.raises(ArgumentError, match=r"Untraced\.forward is not traced"):
            use()
    with pytest.raises(ArgumentError, match="this cannot be compiled"):
        meta.vm.compile(lambda x: x, ones(1))


# Gradients as results.


def test_value_and_grad_of_several_results() -> None:
    class Two(Model):
        def build(self) -> None:
            self.w, self.unused, self.table = ones(2), ones(3), ones(2)
            self.w.requires_grad = self.unused.requires_grad = True

        @trace
        def forward(self, x: Any, scale: float) -> Any:
            return {"y": x * self.w * scale, "best": op.argmax(x), "z": op.exp(self.w)}

    model = Two()
    run = meta.model.value_and_grad(model)
    x, dys = meta.array([3.0, 1.0]), (meta.array([1.0, 1.0]), meta.array([0.0, 1.0]))
    values, gradients = both(run, dys, x, 2.0)
    assert values["best"].item() == 0
    assert list(gradients) == ["w", "unused"]
    check(gradients["unused"], np.zeros(3, "float32"))
    check(gradients["w"], np.array([6.0, 2.0 + np.e], "float32"))
    assert not gradients["w"].requires_grad
    assert not values["y"].requires_grad
    for wrong in (dys[0], (dys[0], ones(3)), (dys[0], ones(2, dtype="float64"))):
        with pytest.raises(GradientError, match="dy does not fit"):
            run(wrong, x, 2.0)


def test_value_and_grad_names_what_has_no_gradient() -> None:
    class Best(Model):
        def build(self) -> None:
            self.w = ones(2)
            self.w.requires_grad = True

        @trace
        def forward(self, x: Any) -> Any:
            return op.astype(op.argmax(x * self.w), "float32")

    with pytest.raises(GradientError, match="argmax has no gradient"):
        meta.model.value_and_grad(Best())(meta.array(1.0), ones(2))


def test_value_and_grad_of_what_depends_on_no_parameter() -> None:
    model = Scale(2.0)
    with pytest.raises(GradientError, match="does not depend"):
        meta.model.value_and_grad(model)(ones(2), ones(2))


def test_traced_functions_are_shown() -> None:
    model = Scale(1.0)
    assert isinstance(model.forward, Traced)
    assert repr(model.forward) == "<traced Scale.forward, 0 programs>"
    assert "Linear" in repr(Sequential(Linear(1, 1)))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (divmod, ([2.0, 1.0], [1.0, 1.0])),
        (operator.add, [7.0, 5.0]),
        (functools.partial(pow), [25.0, 9.0]),
        (functools.partial(lambda x, y: x - y), [3.0, 1.0]),
        (meta.add, [7.0, 5.0]),
        (meta.hypot, [29.0**0.5, 13.0**0.5]),
    ],
)
def test_callables_that_are_no_functions_of_python(function: Any, expected: Any) -> None:
    traced = trace(function)
    x, y = meta.array([5.0, 3.0]), meta.array([2.0, 2.0])
    for found in (traced(x, y), meta.vm.compile(traced, x, y)(x, y)):
        torch.testing.assert_close(
            [a.torch() for a in found] if isinstance(found, tuple) else found.torch(),
            [*map(torch.tensor, expected)] if isinstance(found, tuple) else torch.tensor(expected),
        )
    with pytest.raises(ArgumentError, match="cannot be called like this"):
        traced(x, y, x, x, x, x)


class Scaled:
    """An object that can be called."""

    factor = 2.0

    def __call__(self, x: Any) -> Any:
        return x * self.factor


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (max, "are not known"),
        (5, "is given a function"),
        (Scaled(), "would not follow the attributes"),
        (functools.partial(Scaled()), "would not follow the attributes"),
    ],
)
def test_what_is_not_traced(function: Any, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        trace(function)
