"""What the author of a backend states wrongly: an error where it is stated, or at the first call,
with the author's file and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import BackendError, DispatchError, MetaWarning, RegistrationError
from meta.dialect import HANDWRITTEN, Dialect, OpEnv, ask, tunable
from meta.dialect.core import DIALECTS
from tests.registered import remove_dialects

HERE = "test_registration_checks.py"
X = meta.array([[1.0, 2.0, 3.0]])


def drop(name: str) -> None:
    """Forget a dialect and its kernels."""
    remove_dialects(*(one for one in [*DIALECTS.values()] if one.name == name))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    drop("acme")


def acme(**how: Any) -> Dialect:
    return Dialect("acme", **{"devices": ("cpu",), "plevel": HANDWRITTEN, **how})


DIALECT: list[tuple[dict[str, Any], str]] = [
    ({"plevel": "high"}, "no level"),
    ({"plevel": None}, "no level"),
    ({"plevel": 12.5}, "no level"),
    ({"plevel": True}, "no level"),
    ({"plevel": -1}, "no level"),
    ({"devices": ("gpu",)}, "unknown kind of device"),
    ({"devices": ("cpu", "cuda:0")}, "unknown kind of device"),
    ({"devices": (torch.device("cpu"),)}, "unknown kind of device"),
    ({"devices": "cpu"}, "no kinds of devices"),
    ({"devices": ()}, "no kinds of devices"),
    ({"devices": None}, "no kinds of devices"),
    ({"probe": "numpy is missing"}, "probe= of the dialect 'acme' is no plain function"),
    ({"declines": "never"}, "declines= of the dialect 'acme' is no plain function"),
    ({"warmup": 3}, "warmup= of the dialect 'acme' is no plain function"),
    ({"package": torch}, "no name of a module"),
    ({"once": "reduce"}, "no tuple of operator families"),
    ({"time_limit": -1}, "no number of seconds"),
    ({"time_limit": "1s"}, "no number of seconds"),
]


@pytest.mark.parametrize(("how", "message"), DIALECT)
def test_a_dialect_that_is_stated_wrongly(how: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistrationError, match=message) as caught:
        acme(**how)
    assert HERE in str(caught.value) and "acme" not in DIALECTS


@pytest.mark.parametrize("name", ["my acme", "acme.fast", "", 3, "softmax"])
def test_a_name_that_is_none(name: Any) -> None:
    with pytest.raises(RegistrationError, match="name") as caught:
        Dialect(name, devices=("cpu",))
    assert HERE in str(caught.value)


def test_devices_may_be_a_list() -> None:
    assert acme(devices=["cpu", "cuda", "cpu"]).devices == ("cpu", "cuda")


def yields(x: Any) -> Iterator[Any]:
    yield x


async def waits(x: Any) -> Any:
    return x


def forgets(x: Any) -> None:
    x * 2


def only_by_place(x: Any, /) -> Any:
    return x


KERNEL: list[tuple[Any, Any, dict[str, Any], str]] = [
    ("relu", lambda x: x, {}, "is of no operator"),
    (torch.relu, lambda x: x, {}, "is of no operator"),
    (op.torch.relu, lambda x: x, {}, "is of no operator"),
    (meta.one_hot, lambda x: x, {}, "asks for"),
    (op.relu, 3, {}, "no plain function"),
    (op.relu, dict, {}, "no plain function"),
    (op.relu, yields, {}, "no plain function"),
    (op.relu, waits, {}, "no plain function"),
    (op.relu, forgets, {}, "returns nothing, and has no parameter 'out'"),
    (op.relu, only_by_place, {}, "by position only"),
    (op.relu, torch.exp, {}, "not known"),
    (op.relu, lambda x: x, {"plevel": "high"}, "no level"),
    (op.relu, lambda x: x, {"plevel": {"cpu": "high"}}, "no level"),
    (op.relu, lambda x: x, {"plevel": {"gpu": 3}}, "for a device of others"),
    (op.relu, lambda x: x, {"when": "float32 only"}, "when= of a kernel of 'relu' is no plain"),
    (op.relu, lambda x: x, {"init": 3}, "init= of a kernel of 'relu' is no plain"),
    (op.relu, lambda x, state: x, {"state_of": "exp"}, "is of no operator"),
]


@pytest.mark.parametrize(("base", "kernel", "how", "message"), KERNEL)
def test_a_kernel_that_is_stated_wrongly(
    base: Any, kernel: Any, how: dict[str, Any], message: str
) -> None:
    mine = acme()
    with pytest.raises(RegistrationError, match=message) as caught:
        mine.kernel(base, **how)(kernel)
    assert HERE in str(caught.value) and not mine.ops


class Scaled:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 5


def fills(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.mul(x, 5, out=out)


def raises_only(x: torch.Tensor) -> None:
    raise ValueError("not for you")


@pytest.mark.parametrize("kernel", [Scaled(), Scaled().__call__, partial(lambda x: x * 5), fills])
def test_kernels_of_other_kinds(kernel: Callable[..., Any]) -> None:
    acme().kernel(op.relu)(kernel)
    assert meta.relu(X).tolist() == [[5.0, 10.0, 15.0]]


@pytest.mark.parametrize("answer", [False, True, 1, 0, "", "  ", np.bool_(True), ("no",)])
@pytest.mark.parametrize("where", ["when", "declines", "probe"])
def test_an_answer_that_reads_both_ways(answer: Any, where: str) -> None:
    says: dict[str, Any] = {where: lambda *call: answer}
    mine = acme(**({} if where == "when" else says))
    mine.kernel(op.relu, **(says if where == "when" else {}))(lambda x: x)
    if where == "probe":  # the backend is not used, and it is said why
        assert meta.relu(X).tolist() == X.tolist()
        assert "its probe returns" in str(mine.unavailable) and HERE in mine.unavailable
        return
    with pytest.raises(RegistrationError, match=rf"{where}= returns") as caught:
        meta.relu(X)
    assert "None to accept, or a string with the reason to decline" in str(caught.value)
    assert HERE in str(caught.value)


@pytest.mark.parametrize("probe", [lambda: 1 / 0, lambda: exit(3), lambda device: None])
def test_a_probe_that_fails_makes_the_backend_unavailable(probe: Callable[..., Any]) -> None:
    mine = acme(probe=probe)
    mine.kernel(op.relu)(lambda x: x)
    assert meta.relu(-X).tolist() == [[0.0, 0.0, 0.0]]
    assert "its probe at" in str(mine.unavailable) and HERE in str(mine.unavailable)


def fails(call: Any) -> Any:
    return call.nothing


AT_A_CALL: list[tuple[Callable[[Dialect], Any], type[Exception], str]] = [
    (lambda d: d.kernel(op.relu, when=fails)(lambda x: x), BackendError, "cannot prepare"),
    (lambda d: d.kernel(op.relu)(raises_only), BackendError, "not for you"),
    (lambda d: d.op(op.relu)(fails), BackendError, "cannot prepare"),
    (lambda d: d.op(op.relu)(lambda: None), BackendError, "cannot prepare"),
    (lambda d: d.op(op.relu)(lambda call: None), RegistrationError, "returns no kernel"),
    (lambda d: d.op(op.relu)(lambda call: fills), RegistrationError, "returns no kernel"),
    (lambda d: d.op(op.relu)(lambda call: OpEnv(3, True)), RegistrationError, "no plain function"),
]


@pytest.mark.parametrize(("register", "kind", "message"), AT_A_CALL)
def test_what_is_found_at_the_first_call_names_the_author(
    register: Callable[[Dialect], Any], kind: type[Exception], message: str
) -> None:
    register(acme())
    with pytest.raises(kind, match=message) as caught:
        exec("import meta; meta.relu(meta.ones(3))", {})  # a user's line, in no file
    assert HERE in str(caught.value)
    with meta.dialect.exclude("acme"):
        assert meta.relu(X).shape == (1, 3)


def test_declines_that_fails_names_the_author() -> None:
    acme(declines=fails).kernel(op.relu)(lambda x: x)
    with pytest.raises(BackendError, match="'CallValues' object has no attribute 'nothing'"):
        meta.relu(X)


BROKEN: list[Callable[..., Any]] = [
    lambda x: 1 / 0,
    lambda x: op.exppp(x),
    lambda x: op.softmax(x, axes=3),
    lambda x: x,
    lambda x: None,
    lambda x, y: op.exp(op.relu(x)),
]


@pytest.mark.parametrize("describes", BROKEN)
def test_a_broken_pattern_does_not_stop_a_program(describes: Callable[..., Any]) -> None:
    acme().pattern(describes)(lambda x: x)
    module = meta.model.trace(lambda x: meta.exp(x)).program(X).module
    with pytest.warns(MetaWarning, match=r"the pattern '<lambda>' of 'acme' is not used"):
        fused = meta.passes.fuse_dialect(module, device=meta.ones(1).device)
    assert list(fused.functions) == ["main"]
    text = meta.passes.explain_fusion(module, device=meta.ones(1).device)
    assert "the pattern '<lambda>' of 'acme' is not used" in text


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"when": lambda x: False}, "when= returns False"),
        ({"when": lambda x: True}, "when= returns True"),
        ({"when": lambda x: x.nothing}, "cannot prepare a kernel"),
    ],
)
def test_a_pattern_that_answers_wrongly(how: dict[str, Any], message: str) -> None:
    acme().pattern(lambda x: op.exp(op.relu(x)), **how)(lambda x: x)
    module = meta.model.trace(lambda x: meta.exp(meta.relu(x))).program(X).module
    with pytest.raises((RegistrationError, BackendError), match=message) as caught:
        meta.passes.fuse_dialect(module, device=meta.ones(1).device)
    assert HERE in str(caught.value)


@pytest.mark.parametrize("made", [None, fills])
def test_a_maker_of_a_pattern_that_makes_none(made: Any) -> None:
    acme().pattern_op(lambda x: op.exp(op.relu(x)))(lambda x: made)
    module = meta.model.trace(lambda x: meta.exp(meta.relu(x))).program(X).module
    with pytest.raises(RegistrationError, match="returns no kernel") as caught:
        meta.passes.fuse_dialect(module, device=meta.ones(1).device)
    assert HERE in str(caught.value)


def test_a_pattern_of_what_is_no_function() -> None:
    mine = acme()
    with pytest.raises(RegistrationError, match="no plain function"):
        mine.pattern(op.exp(X))(lambda x: x)
    with pytest.raises(RegistrationError, match="returns nothing"):
        mine.pattern(lambda x: op.exp(op.relu(x)))(forgets)


ASKED = [("rows of", 64, (16,)), ("rows", "64", (16,)), ("rows", 64, ("16",)), ("rows", 64.0, ())]


@pytest.mark.parametrize(("name", "default", "options"), ASKED)
def test_a_number_that_is_asked_for_wrongly(name: Any, default: Any, options: Any) -> None:
    @acme().op(op.relu)
    @tunable
    def relu(call: Any) -> OpEnv:
        ask(name, default, options)
        return OpEnv(lambda x: x, True)

    with pytest.raises(RegistrationError, match="ask") as caught:
        meta.relu(X)
    assert HERE in str(caught.value)


def test_a_configuration_that_the_kernel_does_not_have() -> None:
    mine = acme()

    @mine.op(op.relu)
    @tunable
    def relu(call: Any) -> OpEnv:
        ask("rows", 64, (16,))
        return OpEnv(lambda x: x, True)

    with pytest.raises(DispatchError, match=r"this kernel has no row=16, only \['rows'\]"):
        mine.resolve("relu@row=16")(X)
