"""Steps of optimizers: Adam over several steps, with numbers that change and nothing built anew;
slots of several tensors that are written in place, and `lans`, which has one; formulas.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import BackendError, GradientError, TraceError, TypeInferError
from meta.base.registry import OPERATORS
from meta.dialect.torch import torch as dialect
from meta.dialect.tvm import compute
from meta.grad.core import not_differentiable
from meta.op.core import InOut, Op, Scalar, TensorType
from meta.op.core import op as operator
from meta.passes import dead_code
from meta.runtime.ndarray import ndarray
from meta.testing import check, randn

SETTINGS = (0.9, 0.999, 1e-6, 1, 0.01, 1, 1, True)

STEPS = 6
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.fixture
def scale_all() -> Iterator[Op]:
    """An operator that multiplies all its tensors by a number, and returns how large they were."""

    @operator
    def scale_all(xs: tuple[InOut, ...], by: Scalar, last: InOut) -> TensorType:
        return TensorType((), last.dtype)

    @dialect.kernel(scale_all)
    def kernel(xs, by, last):
        total = sum(x.abs().sum() for x in (*xs, last))
        for x in (*xs, last):
            x.mul_(by)
        return total.reshape(()).clone()

    not_differentiable(scale_all, why="it writes")
    yield scale_all
    OPERATORS.remove(scale_all.name)
    del dialect.ops[scale_all.name]


def ones(*shape: int) -> ndarray:
    return meta.ones(shape, "float32")


def test_the_slot_says_that_it_is_written(scale_all: Op) -> None:
    assert [(s.kind, s.access) for s in scale_all.slots] == [
        ("tensors", "RW"),
        ("scalar", "RO"),
        ("tensor", "RW"),
    ]
    assert scale_all.has_effect
    assert "xs: tuple of tensors written in place" in str(scale_all.schema)
    assert scale_all.signature("forward")[0] == ("xs", "RW")


def test_a_caller_gets_results_then_what_was_written(scale_all: Op) -> None:
    a, b, last = ones(2), ones(1, 3), ones()
    total, *written = scale_all([a, b], 2.0, last)
    assert total.item() == 6
    assert all(found is given for found, given in zip(written, (a, b, last), strict=True))
    assert [x.numpy().max() for x in written] == [2, 2, 2]
    assert len(scale_all((), 2.0, last)) == 2


def test_strided_arrays_are_written_where_they_are() -> None:
    base = torch.ones(3, 2)
    x = ndarray(base.t())
    rest = [meta.array(np.full((2, 3), v, "float32")) for v in (1.0, 0.0, 0.0)]
    op.lans((rest[0], x, rest[1], rest[2]), 1, 0.5, *SETTINGS)
    compact = [meta.array(np.full((2, 3), v, "float32")) for v in (1.0, 1.0, 0.0, 0.0)]
    op.lans(tuple(compact), 1, 0.5, *SETTINGS)
    np.testing.assert_allclose(base.t().numpy(), compact[1].numpy(), rtol=1e-6)
    assert base.numpy().max() < 1


def test_a_traced_program_writes_its_arguments(scale_all: Op) -> None:
    def double(a: ndarray, b: ndarray) -> ndarray:
        _, a, b, _ = scale_all((a, b), 2.0, op.zeros((), "float32"))
        return meta.sum(a) + meta.sum(b)

    traced = meta.model.trace(double)
    a, b = ones(2), ones(3)
    assert traced(a, b).item() == 10
    assert meta.vm.compile(traced, a, b)(a, b).item() == 20
    assert a.numpy().tolist() == [4, 4]
    program = dead_code(traced.program(a, b).module)
    assert "scale_all((%a, %b), by=2.0" in str(program)


def test_a_program_does_not_write_its_constants(scale_all: Op) -> None:
    closed_over = ones(2)
    traced = meta.model.trace(lambda a: scale_all((a, closed_over), 2.0, a)[0])
    with pytest.raises(TraceError, match="only closes over"):
        traced(ones(2))


def test_the_tape_notices_what_was_written(scale_all: Op) -> None:
    x = ones(2)
    x.requires_grad = True
    y = x * x
    scale_all((ones(1), x), 2.0, ones())
    with pytest.raises(GradientError, match="written in place after the call"):
        meta.sum(y).backward()


def test_lans_leaves_the_gradients_and_updates_the_rest() -> None:
    tensors = [randn((3,)) for _ in range(6)] + [meta.abs(randn((3,))) for _ in range(2)]
    before = [t.numpy() for t in tensors]
    found = op.lans(tuple(tensors), 2, 0.1, *SETTINGS)
    assert all(a is b for a, b in zip(found, tensors, strict=True))
    same = [np.array_equal(t.numpy(), old) for t, old in zip(tensors, before, strict=True)]
    assert same == [True] * 2 + [False] * 6


@pytest.mark.parametrize(
    ("tensors", "settings", "message"),
    [
        ([(2,)] * 3, SETTINGS, "wrong length"),
        ([], SETTINGS, "wrong length"),
        ([(2,), (3,), (2,), (2,)], SETTINGS, "moments of block 0 differ"),
        ([(2,)] * 4, (0.9, 0.999, 1e-6, 1, 0.01, 1, 2, True), "mode must be 0 or 1"),
        ([(2,)] * 4, (0.9, 0.999, 1e-6, 3, 0.01, 1, 1, True), "bias_correction must be 0 or 1"),
    ],
)
def test_what_is_no_list_of_blocks_is_refused(tensors, settings, message) -> None:
    with pytest.raises(TypeInferError, match=message):
        op.lans(tuple(randn(s) for s in tensors), 1, 0.1, *settings)


def test_lans_takes_one_floating_point_dtype() -> None:
    with pytest.raises(TypeInferError, match="differ in dtype"):
        op.lans((*[randn((2,))] * 3, randn((2,), dtype="float64")), 1, 0.1, *SETTINGS)
    with pytest.raises(TypeInferError, match="must be floating point"):
        op.lans((op.zeros((2,), "int32"),) * 4, 1, 0.1, *SETTINGS)
    with pytest.raises(TypeInferError, match="step must be one number"):
        op.lans((randn((2,)),) * 4, ones(2), 0.1, *SETTINGS)


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_several_steps_are_those_of_torch(name: str, dialect: str) -> None:
    torch.manual_seed(0)
    start = torch.randn(5, 7, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    theirs = OPTIMIZERS[name]([parameter], lr=0.0, betas=(0.8, 0.95), weight_decay=0.1)
    x = meta.array(start.numpy())
    m, v = op.zeros_like(x), op.zeros_like(x)
    for step in range(1, STEPS + 1):
        rate = 0.3 / step
        parameter.grad = torch.randn_like(parameter)
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        dx = meta.array(parameter.grad.numpy())
        with meta.dialect.only(dialect):
            getattr(op, name)(x, dx, m, v, step, rate, 0.8, 0.95, weight_decay=0.1)
    check(x, parameter, 1e-12, 1e-12)


def test_a_schedule_builds_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a kernel is built")

    x, dx = meta.array([1.0, 2.0, 3.0]), meta.array([0.1, -0.1, 0.2])
    m, v = op.zeros_like(x), op.zeros_like(x)
    with meta.dialect.only("tvm"):
        op.adamw(x, dx, m, v, 1, 0.1)
        monkeypatch.setattr(compute, "deferred", refuse)
        for step in range(2, 6):
            op.adamw(x, dx, m, v, step, 0.1 / step, beta1=0.5 + step / 100, weight_decay=0.1 * step)
        other = meta.array([[1.0, 2.0]])
        with pytest.raises(BackendError, match="a kernel is built"):
            op.adamw(other, other, op.zeros_like(other), op.zeros_like(other), 1, 0.1)


def test_a_wrong_state_is_refused_before_anything_is_written() -> None:
    x, dx = meta.array([1.0, 2.0]), meta.array([1.0, 1.0])
    m, v = op.zeros_like(x), meta.array([0.0])
    with pytest.raises(TypeInferError, match="x, dx, m and v differ"):
        op.adam(x, dx, m, v, 1, 0.1)
    check(x, torch.tensor([1.0, 2.0]))
