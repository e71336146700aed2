"""Dispatch beside the choice among dialects (`test_selection.py`): what a decision is keyed by,
promises that META_VERIFY checks, devices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base import config
from meta.base.device import CPU, Device
from meta.base.errors import BackendError, DeviceError, DispatchError
from meta.base.registry import OPERATORS
from meta.dialect import Dialect, OpEnv, Unsupported
from meta.dialect.core import dispatch
from meta.op.core import CallValues, InOut, Op, Scalar, Tensor, TensorType, op
from meta.runtime.array_key import ArrayKey
from meta.runtime.ndarray import as_array
from tests.registered import remove_dialects

X = TensorType((2, 3), "float32")


@pytest.fixture
def mine() -> Iterator[Dialect]:
    """A dialect that is forgotten, with its operators, after the test."""
    dialect = Dialect("mine", devices=("cpu",))
    yield dialect
    remove_dialects(dialect)


@pytest.fixture
def define() -> Iterator[Callable[..., Op]]:
    """Define operators that are forgotten after the test."""
    made: list[Op] = []

    def new(function: Callable[..., Any]) -> Op:
        made.append(op(function))
        return made[-1]

    yield new
    for base in made:
        OPERATORS.remove(base.name)


def scaled(x: Tensor, by: Scalar | Tensor = 1.0, mode: bool | int | float = 1) -> Tensor:
    """x * by, with an attribute of any number type."""
    return x


def call(base: Op, *args: Any, device: Device = CPU) -> CallValues:
    return base.call_values(base.schema.bind(args, {}, lambda t: t), device)


def test_a_kernel_says_that_no_graph_can_hold_it(mine: Dialect, define: Any) -> None:
    base = define(scaled)

    @mine.kernel(base, not_capturable="it reads a number on the host")
    def kernel(x: torch.Tensor, by: Any) -> torch.Tensor:
        return x * float(by)

    assert dispatch(call(base, X)).not_capturable == "it reads a number on the host"


# What a decision is keyed by.


def test_one_env_for_one_kind_of_call(mine: Dialect, define: Any) -> None:
    base = define(scaled)
    made: list[CallValues] = []

    @mine.op(base)
    def make(call: CallValues) -> OpEnv:
        made.append(call)
        return OpEnv(lambda x, by: x * by, allocates=True)

    env = dispatch(call(base, X))
    assert env.dialect_op is mine.ops["scaled"] and dispatch(call(base, X)) is env
    for number in (1.0, 2.5, -0.0, float("nan"), float("inf")):
        assert dispatch(call(base, X, number)) is env, "a run-time number is no part of the kernel"
    assert len(made) == 1

    others = [
        call(base, X, 1),
        call(base, X, True),
        call(base, X, TensorType((), "float32")),
        call(base, X, 1.0, 2),
        call(base, X, 1.0, 1.0),
        call(base, X, 1.0, True),
        call(base, X, 1.0, 0.0),
        call(base, X, 1.0, -0.0),
        call(base, X.with_dtype("float64")),
        call(base, X.with_shape((3, 2))),
    ]
    envs = [env, *(dispatch(c) for c in others)]
    assert len({id(e) for e in envs}) == len(envs) == len(made)
    assert [dispatch(c) for c in others] == envs[1:]


def test_eager_calls_share_what_dispatch_found(mine: Dialect, define: Any) -> None:
    base = define(scaled)
    modes: list[Any] = []

    @mine.kernel(base)
    def kernel(x: torch.Tensor, by: Any, mode: Any, call: Any) -> torch.Tensor:
        modes.append(mode)
        return x * by

    x = meta.array([1.0, -2.0])
    for number in (2.0, 3.0, 4):
        assert base(x, number).numpy().tolist() == [number, -2 * number]
    for mode in (1, 1.0, True, 0.0, -0.0):
        base(x, 2.0, mode)
    assert [repr(m) for m in modes[3:]] == ["1", "1.0", "True", "0.0", "-0.0"]


def test_preferences_keep_their_own_decisions(mine: Dialect) -> None:
    mine.kernel(meta.relu)(lambda x: torch.relu(x))
    relu = call(meta.relu, X)
    with meta.dialect.only("torch"):
        other = dispatch(relu)
    with meta.dialect.only("mine"):
        env = dispatch(relu)
    assert env is not other
    with meta.dialect.prefer("mine"):
        assert dispatch(relu).dialect_op is env.dialect_op
    with meta.dialect.only("torch"):
        assert dispatch(relu) is other


def test_a_preference_counts_where_it_is_entered() -> None:
    later = meta.dialect.exclude("torch")
    with (
        meta.dialect.exclude("tvm"),
        later,
        pytest.raises(DispatchError, match="no dialect accepts") as caught,
    ):
        meta.relu(meta.array([1.0]))
    assert str(caught.value).count("excluded by exclude()") == 2


def test_the_error_says_who_was_asked_and_where(mine: Dialect) -> None:
    @mine.op(meta.relu, plevel=17)
    def make(call: CallValues) -> OpEnv:
        raise Unsupported("on holiday")

    with meta.dialect.only("mine"), pytest.raises(DispatchError) as caught:
        meta.relu(meta.array([1.0]))
    line = make.site.line
    text = str(caught.value)
    assert text.startswith("relu: no dialect accepts this call")
    assert f"mine     plevel 17  {__file__}:{line}  refuses: on holiday" in text
    assert "relu(x=float32[1]) on cpu" in text and "not among only('mine')" in text
    assert caught.value.span is not None and caught.value.span.file == __file__


def test_first_calls_from_many_threads(mine: Dialect, define: Any) -> None:
    base = define(scaled)
    mine.kernel(base)(lambda x, by: x * by)
    x, found, start = meta.array([1.0, 2.0]), [], threading.Barrier(8)

    def work(i: int) -> None:
        start.wait()
        for n in range(20):
            found.append((i + n, base(x, float(i + n)).numpy().tolist()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 160 and all(values == [k, 2 * k] for k, values in found)


# META_VERIFY.


def flipped(x: torch.Tensor) -> torch.Tensor:
    x.neg_()
    return x.clone()


BROKEN = {
    "float32[7]": lambda x: x.new_zeros(7),
    "float64[2, 3]": lambda x: x.double(),
    "strides (1, 2)": lambda x: torch.empty(3, 2).T,
    "2 results": lambda x: (x.clone(), x.clone()),
    "shares the memory of argument 0": lambda x: x,
    "result 0 shares the memory": lambda x: x.view(2, 3),
    "0 shares the memory of argument": lambda x: x[...],
    "opposite sign": lambda x: torch._neg_view(x.clone()),
    "argument 0 was written": flipped,
}


@pytest.mark.parametrize("fault", BROKEN)
def test_verify_finds_kernels_that_break_their_promise(
    fault: str, mine: Dialect, define: Any
) -> None:
    base = define(scaled)
    mine.kernel(base)(BROKEN[fault])
    x = meta.array([[1.0, 2.0, 3.0]] * 2)
    with config.override(META_VERIFY=True), pytest.raises(BackendError) as caught:
        base(x)
    text = str(caught.value)
    assert "breaks its promise" in text and "mine.scaled" in text
    assert fault in text


def test_verify_compares_storages_not_addresses(mine: Dialect, define: Any) -> None:
    def tail(x: Tensor) -> Tensor:
        return TensorType((2,), x.dtype)

    def halves(x: Tensor) -> tuple[TensorType, TensorType]:
        return TensorType((2,), x.dtype), TensorType((2,), x.dtype)

    def filled(x: Tensor) -> Tensor:
        return x

    one, two, three, nan = define(tail), define(halves), define(filled), define(scaled)
    mine.kernel(nan)(lambda x, out: out.fill_(torch.nan))
    mine.kernel(one)(lambda x: x[1:])
    mine.kernel(two)(lambda x: (x[:2] * 2,) * 2)

    @mine.kernel(three)
    def part(x: torch.Tensor, out: torch.Tensor) -> None:
        out[1:] = x[1:]

    x = meta.array([1.0, 2.0, 3.0])
    with config.override(META_VERIFY=True):
        with pytest.raises(BackendError, match="result 0 shares the memory of argument 0"):
            one(x)
        with pytest.raises(BackendError, match="result 1 shares the memory of another"):
            two(x)
        # What a kernel leaves out is no accident of the memory.
        with pytest.raises(BackendError, match="1 of 3 elements of result 0 are as they were"):
            three(x)
        assert np.isnan(nan(x).numpy()).all()  # of a kernel's making


def test_verify_lets_good_kernels_pass(mine: Dialect, define: Any) -> None:
    def both(x: Tensor, acc: InOut) -> tuple[TensorType, TensorType]:
        return x, x.with_dtype("bool")

    def only_writes(acc: InOut, by: Scalar = 1.0) -> tuple[TensorType, ...]:
        return ()

    pair, writer, plain = define(both), define(only_writes), define(scaled)

    @mine.kernel(pair)
    def pair_kernel(x: torch.Tensor, acc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        acc += x
        return x + 1, x > 1

    @mine.kernel(writer)
    def writer_kernel(acc: torch.Tensor, by: float) -> None:
        acc += by

    @mine.kernel(plain)
    def plain_kernel(out: torch.Tensor, x: torch.Tensor, by: Any) -> None:
        torch.mul(x, by, out=out)

    x, acc = meta.array([1.0, 2.0]), meta.array([0.0, 0.0])
    with config.override(META_VERIFY=True):
        y, mask, written = pair(x, acc)
        assert written is acc and acc.numpy().tolist() == [1, 2]
        assert (y.numpy().tolist(), mask.numpy().tolist()) == ([2, 3], [False, True])
        assert writer(acc, 2.0) == (acc,) and acc.numpy().tolist() == [3, 4]
        assert plain(x, 3.0).numpy().tolist() == [3, 6]
        assert plain(meta.array([[]]), 3.0).shape == (1, 0)


# Devices.


def on_cuda(values: torch.Tensor) -> meta.ndarray:
    """An array whose key says that it lives on a GPU; no such call gets as far as its values."""
    return meta.ndarray(values, ArrayKey(tuple(values.shape), "float32", Device("cuda:0"), True))


def test_arrays_on_several_devices() -> None:
    x, far = meta.array([1.0]), on_cuda(torch.ones(1))
    for use in (lambda: x + far, lambda: far + x, lambda: meta.concat((x, far))):
        with pytest.raises(DeviceError, match="on several devices") as caught:
            use()
        assert caught.value.found == "cpu, cuda:0" and caught.value.op in ("add", "concat")


def test_a_dialect_that_does_not_run_there(mine: Dialect) -> None:
    mine.kernel(meta.relu)(lambda x: x)
    with (
        meta.dialect.only("mine"),
        pytest.raises(DispatchError, match="does not run on cuda, only on cpu"),
    ):
        meta.relu(on_cuda(torch.ones(1)))


def test_a_device_that_is_absent_or_unknown() -> None:
    with pytest.raises(DeviceError, match="cuda:77 is not present"):
        meta.zeros((1,), device="cuda:77")
    with pytest.raises(DeviceError, match="unknown device"):
        meta.zeros((1,), device="tpu")
    with pytest.raises(DeviceError, match="unknown device"):
        meta.relu(torch.ones(1, device="meta"))
    assert meta.zeros((1,), device="cpu(0)").device == "cpu"


def test_a_strided_argument_is_another_plan_but_not_another_kernel(mine: Dialect) -> None:
    made: list[CallValues] = []

    @mine.op(meta.relu)
    def make(call: CallValues) -> OpEnv:
        made.append(call)
        return OpEnv(lambda x, out: out.copy_(x.as_strided(x.shape, (3, 1))), allocates=False)

    values = torch.arange(6.0).reshape(3, 2)
    with meta.dialect.only("mine"):
        assert meta.relu(values.T).numpy().tolist() == [[0, 2, 4], [1, 3, 5]]
        assert meta.relu(as_array(values.T.contiguous())).numpy().tolist() == [[0, 2, 4], [1, 3, 5]]
    assert len(made) == 1


def test_an_operator_is_a_plain_attribute() -> None:
    assert vars(meta)["add"] is meta.op.add is OPERATORS["add"], "found without __getattr__"
