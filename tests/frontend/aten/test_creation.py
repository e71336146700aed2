"""Tensors of numbers, random ones among them, and shapes as numbers: what torch's samples do not
reach.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.frontend.aten.graph import convert
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import Call, call, check, check_symbolic

X = torch.arange(12.0).reshape(3, 4)
ZERO = torch.tensor(3.0)

CASES = [
    call("zeros", [2, 0], dtype=torch.complex64),
    call("full", [2], True, label="bool"),
    call("full", [2], 3, label="int64"),
    call("full", [], 1 + 2j),
    call("full", [2], 2.7, dtype=torch.int32),
    call("full", [2], 3, dtype=torch.bool),
    call("full_like", X, float("-inf"), dtype=torch.bfloat16),
    call("new_full", X.int(), [2, 2], 7),
    call("fill.Scalar", X.bool(), 2),
    call("fill.Tensor", X, torch.tensor(2)),
    call("scalar_tensor", 3),
    call("scalar_tensor", 3, dtype=torch.int64, layout=torch.strided),
    call("arange", 2.5),
    call("arange.start", 5, 5),
    call("arange.start_step", 5, 1, -2, dtype=torch.float16),
    call("arange.start_step", 0.5, 3, 0.5),
    call("arange.start_step", 0.5, 4.5, 1, dtype=torch.int64, label="whole numbers"),
    *(
        call("arange.start_step", *bounds, dtype=dtype)
        for bounds in ((0.0, -8.1, -4.0), (0.5, 3, 1.5), (-0.5, 2.6, 1))
        for dtype in (torch.int64, torch.int32)
    ),
    call("range", 0, 3),
    call("linspace", 0, 7, 4, dtype=torch.int32),
    call("linspace", -1.0, 1.0, 1),
    call("linspace.Tensor_Scalar", ZERO, 5, 3),
    call("logspace", 0, 2, 3, 2.0),
    call("eye", 0),
    call("eye.m", 2, 3, dtype=torch.bool),
    call("tril_indices", 3, 4, 1),
    call("triu_indices", 3, 4, -1, dtype=torch.int32),
    call("one_hot", torch.tensor([[2, 0]]), 4),
    call("one_hot", torch.zeros(0, 2, dtype=torch.int64), 3),
    call("vander", X[0], 3, True),
    call("linalg_vander", X, N=3),
    call("linalg_vander", ZERO, N=2),
    call("vander", X[0].int(), 0),
    *(
        call(f"{name}_window.periodic", length, periodic)
        for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")
        for length, periodic in ((0, True), (1, False), (7, True), (8, False))
    ),
    call("hamming_window.periodic_alpha", 5, True, 0.3),
    call("kaiser_window.beta", 5, False, 3.0, dtype=torch.float64),
    call("complex", X, X),
    call("polar", X, X),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("zeros", lambda x: ([x.shape[0] * 2, 3],)),
        ("full", lambda x: ([x.shape[0]], x.shape[1])),
        ("arange", lambda x: (x.shape[0],)),
        ("arange.start", lambda x: (1, x.shape[0] + 1)),
        ("arange.start_step", lambda x: (x.shape[0], x.shape[0] * 3, 2)),
        ("eye.m", lambda x: (x.shape[0], x.shape[1])),
        ("new_zeros", lambda x: (x, [x.shape[1] // 2])),
        ("full_like", lambda x: (x, x.shape[0] - 7)),
        ("scalar_tensor", lambda x: (x.shape[0] * x.shape[1] + 3,)),
        ("scalar_tensor", lambda x: ((x.shape[0] + 1) // 2,)),
    ],
)
def test_of_symbolic_extents(name: str, arguments: Any) -> None:
    check_symbolic(name, arguments, X)


DRAWN = [
    ("rand", ([40, 50],), {}, 0.5, 1 / 12),
    ("randn", ([40, 50],), {"dtype": torch.float64}, 0.0, 1.0),
    ("randint.low", (-2, 3, [2000]), {}, 0.0, 2.0),
    ("randint_like", (torch.zeros(2000), 5), {}, 2.0, 2.0),
    ("bernoulli.p", (torch.zeros(2000), 0.25), {}, 0.25, 0.1875),
    ("bernoulli", (torch.full((2000,), 0.25),), {}, 0.25, 0.1875),
    ("uniform", (torch.zeros(2000), -1.0, 3.0), {}, 1.0, 4 / 3),
    ("normal_functional", (torch.zeros(2000), 1.0, 2.0), {}, 1.0, 4.0),
    ("normal.Tensor_Tensor", (torch.ones(2000), torch.tensor(2.0)), {}, 1.0, 4.0),
    ("exponential", (torch.zeros(2000), 2.0), {}, 0.5, 0.25),
    ("geometric", (torch.zeros(2000), 0.5), {}, 2.0, 2.0),
    ("log_normal", (torch.zeros(2000), 0.0, 0.25), {}, 1.0317, 0.0687),
    ("multinomial", (torch.tensor([1.0, 0.0, 1.0]), 2000, True), {}, 1.0, 1.0),
    ("random.to", (torch.zeros(2000), 5), {}, 2.0, 2.0),
    ("native_dropout", (torch.ones(2000), 0.25, True), {}, 1.0, 1 / 3),
    ("dropout", (torch.ones(2000), 0.25, True), {}, 1.0, 1 / 3),
    ("feature_dropout", (torch.ones(50, 40, 3), 0.25, True), {}, 1.0, 1 / 3),
    ("alpha_dropout", (torch.randn(4000, generator=torch.manual_seed(0)), 0.3, True), {}, 0.0, 1.0),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "mean", "variance"), DRAWN)
def test_distributions(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], mean: float, variance: float
) -> None:
    operator, _, overload = name.partition(".")
    target = getattr(getattr(torch.ops.aten, operator), overload or "default")
    meta.random.seed(5)
    ours = tuple(meta.array(a) if isinstance(a, torch.Tensor) else a for a in args)

    def first(found: Any) -> torch.Tensor:
        found = found[0] if isinstance(found, tuple) else found
        return found.torch()

    drawn = [first(convert(target, ours, kwargs)) for _ in range(2)]
    expected = target(*args, **kwargs)
    expected = expected[0] if isinstance(expected, tuple) else expected
    for values in drawn:
        assert values.dtype == expected.dtype and values.shape == expected.shape
        n, wide = values.numel(), values.double()
        assert abs(float(wide.mean()) - mean) < 6 * (variance / n) ** 0.5
        assert abs(float(wide.var()) - variance) < 0.2 * variance
    assert not drawn[0].equal(drawn[1])


def test_dropout_without_training_and_its_gradient() -> None:
    x = meta.array(X)
    aten = torch.ops.aten
    y, mask = convert(aten.native_dropout.default, (x, 0.5, False), {})
    assert y.torch().equal(X) and bool(mask.torch().all())
    y, mask = convert(aten.native_dropout.default, (x, 1.0, True), {})
    assert not y.torch().any() and not mask.torch().any()
    kept = X > 5
    found = convert(aten.native_dropout_backward.default, (x, meta.array(kept), 2.0), {})
    assert found.torch().equal(aten.native_dropout_backward(X, kept, 2.0))


def test_a_program_draws_other_numbers_in_every_run() -> None:
    @meta.model.trace
    def run(x: Any) -> Any:
        return convert(torch.ops.aten.rand_like.default, (x,), {})

    exe = meta.vm.compile(run, meta.ir.parse_type("float32[n, 4]"))
    a, b = exe(meta.array(X)), exe(meta.array(X))
    assert a.shape == (3, 4) and not a.torch().equal(b.torch())


def test_numbers_that_depend_on_values_are_refused() -> None:
    @meta.model.trace
    def run(x: Any) -> Any:
        return x * convert(torch.ops.aten.item.default, (x,), {})

    with pytest.raises(Unconvertible, match="depends on the values"):
        run(meta.array(ZERO))
    assert convert(torch.ops.aten.item.default, (meta.array(ZERO),), {}) == 3.0


def test_shapes_are_numbers() -> None:
    x, aten = meta.array(X), torch.ops.aten
    assert convert(aten.sym_size.int, (x, -1), {}) == 4
    assert convert(aten.sym_numel.default, (x,), {}) == 12
    assert convert(aten.sym_stride.int, (x, 0), {}) == 4
    assert convert(aten.is_floating_point.default, (x,), {}) is True
