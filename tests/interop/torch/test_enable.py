"""`enable`: what a name stands for, scopes, threads, what is served and what is not."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import meta
import meta.interop.torch as interop
from meta.base.errors import ArgumentError, BackendError, DeviceError, UnknownName
from meta.dialect import HANDWRITTEN, Dialect
from meta.dialect.core.preference import DEFAULT
from meta.frontend.aten.registry import AtenError, overload_of
from meta.interop.torch.dispatch_kernel import current_scopes, set_scopes
from meta.interop.torch.overloads import COMPOSED, all_names, overloads_of, refusal
from tests.conftest import run_python
from tests.registered import remove_dialects
from tools.torch_samples.enable import mirror

X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    interop.reset_report()
    yield
    assert not is_overridden("add.Tensor") and not is_overridden("_softmax")


@pytest.fixture
def acme() -> Iterator[Dialect]:
    """A dialect whose kernels are to be told from torch's: relu adds 1, softmax adds 2."""
    made = Dialect("acme_enable", devices=("cpu",), plevel=HANDWRITTEN)

    @made.kernel(meta.op.relu)
    def relu(x: Any) -> Any:
        return torch.relu(x) + 1

    @made.kernel(meta.op.softmax)
    def softmax(x: Any, axis: Any) -> Any:
        return torch.softmax(x, axis) + 2

    @made.kernel(meta.op.tanh)
    def tanh(x: Any) -> Any:
        raise RuntimeError("a kernel that fails")

    yield made
    remove_dialects(made)


def is_overridden(name: str) -> bool:
    overload = overload_of(name)
    assert overload is not None
    return "interop/torch/registration.py" in str(torch._C._dispatch_dump(overload._name))


def served() -> dict[str, str]:
    return dict(list(interop.report().served))


# Names.


@pytest.mark.parametrize(
    ("name", "overloads"),
    [
        ("add.Tensor", ["add.Tensor"]),
        ("aten::_softmax", ["_softmax"]),
        ("aten.relu.default", ["relu"]),
        (torch.ops.aten.mul.Tensor, ["mul.Tensor"]),
        ("add", ["add.Tensor", "add.Scalar"]),
        ("softmax", ["_softmax", "_softmax_backward_data"]),
        (meta.op.gelu, ["gelu", "gelu_backward"]),
        ("layer_norm", ["native_layer_norm", "native_layer_norm_backward"]),
        ("matmul", ["mm", "bmm"]),
    ],
    ids=str,
)
def test_what_a_name_stands_for(name: Any, overloads: list[str]) -> None:
    assert set(overloads) <= set(overloads_of(name))


@pytest.mark.parametrize(
    ("include", "exclude", "error", "text"),
    [
        (["sofmax"], (), UnknownName, "softmax"),
        (["relu_"], (), UnknownName, "relu"),
        (["sort"], (), ArgumentError, "several right results"),
        (["view"], (), ArgumentError, "view"),
        (["dropout"], (), ArgumentError, "cannot be enabled"),
        (["relu"], ["relu"], ArgumentError, "both included and excluded"),
        (["relu"], ["gelu"], ArgumentError, "not included"),
        ("relu", (), ArgumentError, "as a list"),
        ([], (), ArgumentError, "nothing is included"),
        ([3], (), ArgumentError, "is named by"),
        (None, ["sofmax"], UnknownName, "softmax"),
    ],
    ids=str,
)
def test_wrong_names(include: Any, exclude: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        interop.enable(include, exclude)
    assert text in str(raised.value)


def test_devices_that_are_not_there() -> None:
    with pytest.raises(DeviceError, match="kind of device"):
        interop.enable(["relu"], device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="no CUDA device"):
            interop.enable(["relu"], device=("cpu", "cuda"))


def test_what_can_be_enabled_computes_new_tensors() -> None:
    assert len(all_names()) > 400
    for name in all_names():
        overload = overload_of(name)
        assert overload is not None and not overload._schema.is_mutable
        assert torch.Tag.nondeterministic_seeded not in overload.tags
    assert refusal("softmax.int") == COMPOSED
    assert "random" in str(refusal("native_dropout"))


# Scopes.


def test_function_and_block(acme: Dialect) -> None:
    enabled = interop.enable(["relu"], device="cpu")
    assert torch.relu(Y)[0, 0] == 2 and enabled.active
    enabled.disable()
    enabled.disable()
    assert torch.relu(Y)[0, 0] == 1 and not enabled.active
    with pytest.raises(ZeroDivisionError), interop.enable(["relu"], device="cpu"):
        assert torch.relu(Y)[0, 0] == 2
        1 / 0  # noqa: B018
    assert torch.relu(Y)[0, 0] == 1


def test_scopes_nest_and_add_up(acme: Dialect) -> None:
    with interop.enable(["relu"], device="cpu"):
        with interop.enable([meta.op.softmax, "relu"], device="cpu"):
            assert torch.relu(Y)[0, 0] == 2 and torch.softmax(Y, -1)[0, 0] > 2
        assert torch.relu(Y)[0, 0] == 2 and torch.softmax(Y, -1)[0, 0] < 1
    assert torch.relu(Y)[0, 0] == 1
    first = interop.enable(["relu"], device="cpu")
    second = interop.enable(["relu"], device="cpu")
    first.disable()
    assert torch.relu(Y)[0, 0] == 2
    interop.disable()
    assert torch.relu(Y)[0, 0] == 1 and not second.active


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_threads(acme: Dialect) -> None:
    def first() -> float:
        return float(torch.relu(Y)[0, 0])

    with interop.enable(["relu"], device="cpu"):
        assert first() == 2 and in_thread(first) == 2
    with interop.enable(["relu"], device="cpu", thread=True) as mine:
        assert first() == 2 and in_thread(first) == 1
        with interop.enable(["softmax"], device="cpu", thread=True):
            assert first() == 2 and torch.softmax(Y, -1)[0, 0] > 2
        with pytest.raises(ArgumentError, match="another thread"):
            mine_error = in_thread(lambda: _raised(mine.disable))
            raise mine_error
        assert first() == 2
    assert first() == 1


def _raised(function: Callable[[], Any]) -> Exception | None:
    try:
        function()
    except Exception as error:
        return error
    return None


def test_many_threads_at_once(acme: Dialect) -> None:
    wrong: list[float] = []

    def work() -> None:
        for _ in range(30):
            with interop.enable(["relu"], device="cpu", thread=True):
                wrong.extend(v for v in [float(torch.relu(Y)[0, 0])] if v != 2)
            wrong.extend(v for v in [float(torch.relu(Y)[0, 0])] if v != 1)

    # A scope around keeps the registration: PyTorch's table must not change under running calls.
    with interop.enable(["relu"], device="cpu", thread=True):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_preferences_choose(acme: Dialect) -> None:
    with interop.enable(["relu"], device="cpu"):
        assert torch.relu(Y)[0, 0] == 2
        with meta.dialect.exclude("acme_enable"):
            assert torch.relu(Y)[0, 0] == 1
        assert torch.relu(Y)[0, 0] == 2
    assert {d for _, d in interop.report().served} == {"acme_enable", "torch"}


def test_disabled_nothing_is_left() -> None:
    before = torch._C._dispatch_dump("aten::add.Tensor")
    with interop.enable(device="cpu"):
        assert is_overridden("add.Tensor")
    assert torch._C._dispatch_dump("aten::add.Tensor") == before


def test_a_failing_kernel_is_named(acme: Dialect) -> None:
    with interop.enable(["tanh"], device="cpu"):
        with pytest.raises(BackendError, match="acme_enable"):
            torch.tanh(Y)
        with pytest.raises(BackendError, match="acme_enable"):
            torch.tanh(Y)
    assert torch.equal(torch.tanh(Y), Y.tanh())


# What is served.


def test_pytorch_says_what_is_wrong_with_a_call() -> None:
    with interop.enable(device="cpu"):
        with pytest.raises(RuntimeError, match="must match the size"):
            torch.add(torch.ones(2), torch.ones(3))
        with pytest.raises(IndexError, match="Dimension out of range"):
            torch.softmax(X, 7)


CALLS: dict[str, Callable[[Any], Any]] = {
    "x * 2.5": lambda x: x * 2.5,
    "3 - x": lambda x: 3 - x,
    "3.5 / x": lambda x: 3.5 / (x + 1),
    "3 // x": lambda x: 3 // (x + 1),
    "3 % x": lambda x: 3 % (x + 1),
    "2 ** x": lambda x: 2**x,
    "x + True": lambda x: x + True,
    "x / 2": lambda x: x / 2,
    "x + 2 * x": lambda x: torch.add(x, x, alpha=2),
    "3 + 2 * x": lambda x: torch.add(3, x, alpha=2),
    "x * 2j": lambda x: x * 2j,
    "0-d * 2.1": lambda x: x.sum() * 2.1,
    "0-d + 1": lambda x: x.sum() + 1,
    "x * 0-d": lambda x: x * torch.tensor(2.0, dtype=torch.float64),
    "transposed": lambda x: x.t() * 2,
    "expanded": lambda x: x.expand(2, 2, 3) * x,
    "empty": lambda x: x[:0] + x[:0].sum(0),
}


@pytest.mark.product
@pytest.mark.parametrize("dialect", ["torch", "mirror", "tvm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
def test_numbers_and_promotion(dtype: torch.dtype, dialect: str) -> None:
    names = ("3 - x", "x * 2j", "transposed") if dialect == "tvm" else tuple(CALLS)
    for name in names:
        function, x = CALLS[name], X.to(dtype)
        expected = function(x)
        with mirror(), interop.enable(device="cpu"), meta.dialect.prefer(dialect):
            found = [function(x) for _ in range(2)]
        for one in found:
            torch.testing.assert_close(one, expected, msg=lambda text, n=name: f"{n}: {text}")
            assert one.stride() == expected.stride(), name


def test_equal_numbers_of_other_kinds_are_other_calls() -> None:
    x, plans = X.to(torch.int64), DEFAULT.plans
    numbers = (1, True, 1.0, 1 + 0j, 0.0, -0.0, float("nan"))
    expected = [x * n for n in numbers]
    interop.reset_report()
    with interop.enable(["mul"], device="cpu"):
        for n in numbers:  # a dialect that is loaded now forgets the plans made before
            x * n
        found = [x * n for n in numbers]
        known = len(plans)
        again = [x * n for n in numbers]
    assert len(plans) == known
    for one, two, wanted in zip(found, again, expected, strict=True):
        assert one.dtype == two.dtype == wanted.dtype
        assert repr(one) == repr(two) == repr(wanted)


def test_what_is_kept_for_a_thread_is_referenced_as_long() -> None:
    """PyTorch before 2.13 would free it while it is in use."""
    scopes = (object(),)
    before = sys.getrefcount(scopes)
    set_scopes(scopes)
    assert current_scopes() is scopes
    assert sys.getrefcount(scopes) == before + 1
    set_scopes(())
    assert sys.getrefcount(scopes) == before


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated:UserWarning")
def test_results_without_elements_lie_as_pytorchs() -> None:
    for shape in ((0, 3, 3), (2, 0, 3, 3)):
        x = torch.empty(shape)
        expected = torch.cholesky(x)
        with mirror(), interop.enable(["cholesky"], device="cpu"), meta.dialect.prefer("mirror"):
            found = torch.cholesky(x)
        assert found.stride() == expected.stride() and served() == {"cholesky": "mirror"}


def test_channels_last_is_kept() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with interop.enable(device="cpu"), meta.dialect.prefer("tvm"):
        found = [torch.relu(x), torch.add(x, x), torch.nn.functional.gelu(x)]
    assert set(served().values()) == {"tvm"}
    for one, expected in zip(found, [x.relu(), x + x, torch.nn.functional.gelu(x)], strict=True):
        assert one.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(one, expected)


def test_a_transposed_weight_is_not_copied() -> None:
    x, w = torch.randn(4, 8), torch.randn(16, 8)
    with interop.enable(["mm"], device="cpu"), meta.dialect.prefer("tvm"):
        found = x @ w.t()
    assert served() == {"mm": "tvm"}
    torch.testing.assert_close(found, x @ w.t())


def test_refusals_are_counted_and_may_be_errors() -> None:
    x = torch.randn(8)[::2]
    with interop.enable(["relu"], device="cpu"):
        torch.relu(x)
        torch.relu(x)
    report = interop.report()
    ((_, why),) = report.refused
    assert list(report.refused.values()) == [2] and "gaps in memory" in why
    assert f"refused relu x 2: {why}" in str(report) and report.to_json()["served"] == []
    for _ in range(2):
        with (
            interop.enable(["relu"], device="cpu", strict=True),
            pytest.raises(AtenError, match="not served"),
        ):
            torch.relu(x)
    torch.relu(x)


def test_lazily_conjugated_and_negated_tensors() -> None:
    a = torch.randn(3, 3, dtype=torch.complex64)
    expected = [a.conj() @ a, torch.mm(a, a), a.conj().imag * 2, torch.vdot(a[0].conj(), a[0])]
    with interop.enable(device="cpu"):
        found = [a.conj() @ a, torch.mm(a, a), a.conj().imag * 2, torch.vdot(a[0].conj(), a[0])]
    torch.testing.assert_close(found, expected)


def test_other_kinds_of_tensors_are_pytorchs() -> None:
    with interop.enable(device="cpu"):
        sparse = X.to_sparse() * 2
        on_meta = torch.relu(X.to("meta"))
        with torch._subclasses.FakeTensorMode() as mode:
            fake = torch.softmax(mode.from_tensor(X), -1)
        mapped = torch.vmap(lambda x: torch.softmax(x, -1))(X)
        gradient = torch.func.grad(lambda x: torch.tanh(x).sum())(X)
        parameter = torch.relu(nn.Parameter(X))
        with torch.inference_mode():
            inferred = torch.relu(X)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = X @ X.t()
    assert sparse.is_sparse and on_meta.device.type == "meta"
    assert isinstance(fake, torch._subclasses.FakeTensor) and fake.shape == X.shape
    torch.testing.assert_close(mapped, torch.softmax(X, -1))
    torch.testing.assert_close(gradient, 1 - torch.tanh(X) ** 2)
    assert parameter.requires_grad and inferred.is_inference() and half.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_mode_and_second_gradients() -> None:
    x = X.double().requires_grad_()
    with interop.enable(device="cpu"), meta.dialect.prefer("tvm"):
        tangent = torch.func.jvp(torch.tanh, (X,), (Y,))[1]
        assert torch.autograd.gradgradcheck(torch.tanh, [x])
    torch.testing.assert_close(tangent, 1 - torch.tanh(X) ** 2)


# Programs.


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).double()


def layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True).double()


def trained(make: Callable[[], nn.Module], x: torch.Tensor) -> list[torch.Tensor]:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.log_softmax(model(x), -1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize(
    ("make", "shape", "dialect"),
    [
        (small, (5, 6), "torch"),
        (small, (5, 6), "tvm"),
        (layer, (2, 4, 6), "mirror"),
        pytest.param(layer, (2, 4, 6), "tvm", marks=pytest.mark.slow),
    ],
)
def test_trainings_are_equal(
    make: Callable[[], nn.Module], shape: tuple[int, ...], dialect: str
) -> None:
    torch.manual_seed(1)
    x = torch.randn(*shape, dtype=torch.float64)
    expected = trained(make, x)
    with mirror(), interop.enable(device="cpu"), meta.dialect.prefer(dialect):
        found = trained(make, x)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    served = Counter[str]()
    for (_, by), count in interop.report().served.items():
        served[by] += count
    assert served[dialect] > 40


def test_it_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, meta; assert 'meta.interop' not in sys.modules"
    run_python("-c", code)


def test_tasks_of_one_thread_share_its_scope(acme: Dialect) -> None:
    async def first() -> float:
        return float(torch.relu(Y)[0, 0])

    with interop.enable(["relu"], device="cpu", thread=True):
        assert asyncio.run(first()) == 2
