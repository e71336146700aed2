"""Kernels of others: what they return and fill is looked at in the first call of each key, by every
executor, and not later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import BackendError
from meta.dialect import only
from meta.ir.types import UNKNOWN
from meta.op.core import InOut, Op, Scalar, Tensor, TensorType
from tests.registered import Author, author


@pytest.fixture
def own() -> Iterator[Author]:
    with author() as made, only("author", "torch"):
        yield made


def same(x: Tensor) -> Tensor:
    return x


def as_dtype(dtype: str) -> Callable[..., Any]:
    def typed(x: Tensor) -> Tensor:
        return x.with_dtype(dtype)

    return typed


def leaves_out(x: torch.Tensor, out: torch.Tensor) -> None:
    out[:1] = x[:1].to(out.dtype)


def writes_nothing(x: torch.Tensor, out: torch.Tensor) -> None:
    pass


def writes_its_argument(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x)
    x.add_(1)


def _eager(base: Op, x: Any) -> Any:
    return base(x)


def _interpreted(base: Op, x: Any) -> Any:
    return meta.model.trace(lambda v: base(v))(x)


def _compiled(base: Op, x: Any) -> Any:
    return meta.vm.compile(meta.model.trace(lambda v: base(v)), x)(x)


def _in_a_loop(base: Op, x: Any) -> Any:
    def step(state: Any) -> Any:
        return state[0] + 1, base(state[1])

    start = meta.array(0)
    looped = meta.model.trace(lambda v: meta.while_loop(lambda s: s[0] < 2, step, (start, v))[1])
    return meta.vm.compile(looped, x)(x)


EXECUTORS = [_eager, _interpreted, _compiled, _in_a_loop]

BROKEN: dict[str, Callable[..., Any]] = {
    r"float32\[2\]": lambda x: x.sum(-1),
    r"float64\[2, 3\]": lambda x: x.double(),
    r"strides \(1, 2\)": lambda x: (x.t().contiguous() * 2).t(),
    "shares the memory of argument 0": lambda x: x,
    "0 shares the memory of argument": lambda x: x.view(3, 2).view(2, 3),
    "no result": lambda x: {}.get("y"),
    "2 results": lambda x: (x * 1, x * 2),
    "is a list": lambda x: [x * 1],
    "is a ndarray": lambda x: x.numpy() * 1,
    "unknown device": lambda x: x.to("meta"),
    "3 of 6 elements of result 0 are as they were": leaves_out,
    "6 of 6 elements": writes_nothing,
    "argument 0 was written": writes_its_argument,
}


@pytest.mark.parametrize("run", EXECUTORS)
@pytest.mark.parametrize("fault", BROKEN)
def test_what_a_kernel_does_wrong_is_found_in_its_first_call(
    fault: str, run: Callable[..., Any], own: Author
) -> None:
    base = own.kernel(same, BROKEN[fault])
    with pytest.raises(BackendError, match=fault) as caught:
        run(base, meta.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    error = caught.value
    assert error.op == base.name and "author.authored0" in error.what
    assert f"{__file__}:" in error.what  # where the kernel is
    assert error.span is not None and error.span.file == __file__  # where it is called


DTYPES = ["bool", "uint8", "int32", "int64", "uint16", "float16", "bfloat16", "float64"]


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64", "complex128", "float8_e4m3fn"])
def test_results_of_every_dtype_are_seen_to_be_left_out(dtype: str, own: Author) -> None:
    base = own.op(as_dtype(dtype), float8=True)
    own.dialect.kernel(base)(writes_nothing)
    with pytest.raises(BackendError, match="are as they were"):
        base(meta.ones((2, 3)))
    assert base(meta.ones((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "bool", "float32"])
def test_a_kernel_may_mean_what_looks_as_if_nothing_was_written(dtype: str, own: Author) -> None:
    runs = []

    def fill(x: torch.Tensor, out: torch.Tensor) -> None:
        runs.append(out.dtype)
        flat = out.reshape(-1).view(torch.uint8)
        flat.copy_(torch.tensor([0x5A], dtype=torch.uint8).expand(flat.shape))
        if out.dtype.is_floating_point:
            out.fill_(float("nan"))
        elif out.dtype == torch.bool:
            out.fill_(True)

    base = own.kernel(as_dtype(dtype), fill)
    for _ in range(3):
        found = base(meta.ones((2, 3))).torch()
    integers = not (found.dtype.is_floating_point or found.dtype == torch.bool)
    assert len(runs) == 3 + integers  # once more in the first call, to be sure
    assert found.isnan().all() if found.dtype.is_floating_point else (found != 0).all()


@pytest.mark.parametrize("run", EXECUTORS)
def test_integers_of_all_values(run: Callable[..., Any], own: Author) -> None:
    """Some equal what is written beforehand in the first run, others that of the second."""
    base = own.kernel(same, lambda x, out: torch.bitwise_not(x, out=out))
    x = torch.arange(1000).to(torch.uint8)
    found = run(base, meta.array(x)).torch()
    assert torch.equal(found, x if run is _in_a_loop else ~x)


def test_arguments_and_results_in_one_memory(own: Author) -> None:
    """In a program they lie in one arena, whose writes torch counts together."""
    base = own.kernel(same, lambda x, out: torch.mul(x, 2, out=out))
    x = torch.randn(1000, 300)

    def chain(v: Any) -> Any:
        a = base(v)
        b = base(a)
        return base(b) + a + b

    found = meta.vm.compile(meta.model.trace(chain), meta.array(x))(meta.array(x))
    assert torch.equal(found.torch(), 8 * x + 2 * x + 4 * x)


def test_it_is_looked_once_for_each_key_and_program(
    own: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meta.vm.eager import kernel_contracts

    looks = []
    look = kernel_contracts._checked_run
    monkeypatch.setattr(kernel_contracts, "_checked_run", lambda *a: looks.append(1) or look(*a))
    base = own.kernel(same, lambda x: x * 2)
    for _ in range(3):
        base(meta.ones((2, 3)))
    assert len(looks) == 1
    base(meta.ones((4, 3)))
    assert len(looks) == 2
    run = meta.vm.compile(meta.model.trace(lambda x: base(base(x))), meta.ones((2, 3)))
    for _ in range(3):
        assert run(meta.ones((2, 3))).tolist() == [[4.0] * 3] * 2
    assert len(looks) == 3
    meta.relu(meta.ones((2, 3)))  # our own kernels are tested
    assert len(looks) == 3


def test_a_strided_argument_is_a_call_of_its_own(own: Author) -> None:
    keeps_strides, takes_compact = (
        own.kernel(same, lambda x: x * 2, **options) for options in ({}, {"strided": False})
    )
    x = torch.arange(6.0).reshape(2, 3)
    assert keeps_strides(meta.array(x)).tolist() == (x * 2).tolist()
    turned = meta.from_dlpack(x.t())
    with pytest.raises(BackendError, match=r"strides \(1, 3\)"):
        keeps_strides(turned)
    assert takes_compact(turned).tolist() == (x.t() * 2).tolist()


def test_extents_that_only_the_data_can_say(own: Author) -> None:
    def some(x: Tensor) -> Tensor:
        return x.with_shape((UNKNOWN, 3))

    good = own.kernel(some, lambda x: x[x[:, 0] > 1].contiguous())
    bad = own.kernel(some, lambda x: x[x > 1].contiguous())
    x = meta.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    for run in (_eager, _interpreted, _compiled):
        assert run(good, x).tolist() == [[4.0, 5.0, 6.0]]
        with pytest.raises(BackendError, match=r"a compact float32\[\?, 3\]"):
            run(bad, x)


def test_kernels_that_write_their_arguments(own: Author) -> None:
    def adds(acc: InOut, by: Scalar = 1.0) -> tuple[TensorType, ...]:
        return ()

    def returns(acc: InOut) -> Tensor:
        return acc

    adding = own.kernel(adds, lambda acc, by: acc.add_(by) and None)
    aliasing = own.kernel(returns, lambda acc: acc.add_(1))
    acc = meta.array([0.0])
    for _ in range(2):
        adding(acc, 2.0)
    assert acc.tolist() == [4.0]  # each call ran once
    with pytest.raises(BackendError, match="shares the memory of argument 0"):
        aliasing(acc)


def test_a_pattern_of_others_is_looked_at(own: Author) -> None:
    def negated(x: torch.Tensor, out: torch.Tensor) -> None:
        out[:1] = -x[:1].relu()

    own.dialect.pattern(lambda x: meta.negative(meta.relu(x)), plevel=30)(negated)
    model = meta.model.trace(lambda x: meta.negative(meta.relu(x)))
    run = meta.vm.compile(model, meta.ones((2, 3)))
    assert run.kernels() == {"author.negated": 1}
    with pytest.raises(BackendError, match="3 of 6 elements of result 0 are as they were") as error:
        run(meta.ones((2, 3)))
    assert f"{__file__}:" in error.value.what


def test_what_fails_fails_each_time(own: Author) -> None:
    base = own.kernel(same, lambda x: x)
    run = meta.vm.compile(meta.model.trace(lambda v: base(v)), meta.ones(3))
    for _ in range(2):
        for call in (base, run):
            with pytest.raises(BackendError, match="shares the memory"):
                call(meta.ones(3))
