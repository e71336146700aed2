"""Implementations for chips: architecture before vendor before generic; a refusal hands on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import meta
from meta.base.device import CPU, Device
from meta.base.errors import DispatchError, RegistrationError
from meta.cli.card import card
from meta.cost.record import bucket_of, key_of
from meta.dialect import LIBRARY, Dialect, only
from meta.dialect.core import candidates, scope
from meta.dialect.core.dispatch import dispatch
from meta.dialect.core.preference import current, forget
from meta.dialect.core.scope import (
    GENERIC,
    LaunchSettings,
    Scope,
    launch_settings,
    marks,
    registering_as,
)
from meta.op.core import CallValues

VENDOR = Scope("acme", source="1")
FAST = Scope("acme", "fast", source="1")
OTHER = Scope("bolt", source="1")
X = meta.array([0.5, 2.0])


@contextmanager
def in_force(*scopes: Scope) -> Iterator[None]:
    scope.VENDORS.insert(0, lambda device: scopes if device == CPU else ())
    try:
        yield
    finally:
        del scope.VENDORS[0]


def answers(dialect: Dialect, value: float, of: Scope = GENERIC, **options: Any) -> None:
    with registering_as(of):
        dialect.kernel(meta.op.tan, **options)(lambda x: x * 0.0 + value)


def value() -> float:
    return meta.tan(X).numpy()[0].item()


def asked() -> list[str]:
    found = candidates(meta.op.tan, current(), CPU)
    return [str(one.scope) for one in found if one.dialect.name == "chips"]


@pytest.fixture(autouse=True)
def decided_anew() -> Iterator[None]:
    """What is in force changes in these tests without META_VENDOR."""
    forget()
    yield
    forget()


def test_the_most_specific_in_force_runs(chips: Dialect) -> None:
    answers(chips, 1.0)
    answers(chips, 2.0, VENDOR)
    answers(chips, 3.0, FAST)
    answers(chips, 4.0, OTHER)
    with only("chips"):
        assert (value(), asked()) == (1.0, ["generic"])
        forget()
        with in_force(VENDOR):
            assert (value(), asked()) == (2.0, ["vendor acme", "generic"])
        forget()
        with in_force(FAST, VENDOR):
            assert value() == 3.0
            assert asked() == ["architecture acme/fast", "vendor acme", "generic"]
        forget()
        with in_force(OTHER):
            assert value() == 4.0


def test_a_refusal_hands_on_and_its_reason_is_kept(chips: Dialect) -> None:
    answers(chips, 1.0)
    answers(chips, 2.0, VENDOR, when=lambda call: "no vectors")
    answers(chips, 3.0, FAST, when=lambda call: "two axes or more")
    with in_force(FAST, VENDOR), only("chips"):
        assert value() == 1.0
        explained = meta.explain(meta.tan, X)
        rows = explained.records()
        mine = [r for r in rows if r["dialect"] == "chips"]
        assert [(r["scope"], r["reason"], r["chosen"]) for r in mine] == [
            ("architecture acme/fast", "two axes or more", False),
            ("vendor acme", "no vectors", False),
            ("generic", "", True),
        ]
        said = str(explained)
        assert "refuses, kernel of the architecture acme/fast: two axes or more" in said
        assert "refuses, kernel of the vendor acme: no vectors" in said
        # Each at its own level, none below what is less specific.
        assert [r["plevel"] for r in mine] == [20, 20, 5]


def test_each_answers_for_itself(chips: Dialect) -> None:
    answers(chips, 1.0)
    answers(chips, 2.0, VENDOR)
    with in_force(VENDOR), only("chips"):
        found = [c for c in meta.explain(meta.tan, X) if c.dialect_op.dialect is chips]
    assert [c.env.scope for c in found if c.env is not None] == [VENDOR, GENERIC]
    runs = [c.env.run(X.torch())[0].item() for c in found if c.env is not None]
    assert runs == [2.0, 1.0]


def test_where_all_refuse_each_says_why(chips: Dialect) -> None:
    answers(chips, 1.0, when=lambda call: "never")
    answers(chips, 2.0, VENDOR, when=lambda call: "no vectors")
    with in_force(VENDOR), only("chips"), pytest.raises(DispatchError) as caught:
        value()
    assert "vendor acme refuses: no vectors" in str(caught.value)
    assert "refuses: never" in str(caught.value)


def test_what_only_a_vendor_has_is_there_only_where_it_is_in_force(chips: Dialect) -> None:
    answers(chips, 2.0, VENDOR)
    with only("chips"), pytest.raises(DispatchError):
        value()
    with in_force(VENDOR):
        assert (value(), asked()) == (2.0, ["vendor acme"])
    with in_force(VENDOR), only("chips"):
        assert card(meta.op.tan)["kernels"][0]["scope"] == "vendor acme"
    answers(chips, 1.0, plevel=LIBRARY)  # the generic one may come later
    with only("chips"):
        assert (value(), asked()) == (1.0, ["generic"])
    with in_force(VENDOR):
        assert asked() == ["vendor acme", "generic"]


def test_more_specific_goes_first_whatever_its_level_is(chips: Dialect) -> None:
    answers(chips, 1.0, plevel=LIBRARY)
    answers(chips, 2.0, VENDOR, plevel=7)
    answers(chips, 3.0, FAST, plevel=2)
    with in_force(FAST, VENDOR), only("chips"):
        assert value() == 3.0
        levels = [c.plevel for c in meta.explain(meta.tan, X) if c.dialect_op.dialect is chips]
        assert levels == [15, 15, 15]


def test_a_vendor_that_lacks_a_dtype_declines_with_that_reason(chips: Dialect) -> None:
    def declines(call: CallValues) -> str | None:
        return "acme has no float64" if call.args.x.dtype == "float64" else None

    answers(chips, 1.0)
    answers(chips, 2.0, Scope("acme", declines=declines))
    wide = X.astype("float64")
    with in_force(Scope("acme")), only("chips"):
        assert meta.tan(X).numpy()[0] == 2.0
        assert meta.tan(wide).numpy()[0] == 1.0
        assert meta.explain(meta.tan, wide)[0].reason == "acme has no float64"


def test_costs_and_decisions_of_scopes_are_apart(chips: Dialect) -> None:
    answers(chips, 1.0)
    answers(chips, 2.0, VENDOR)
    call = meta.op.tan.call_values((meta.ir.parse_type("float32[2]"),), CPU)
    plain, about = key_of(call, CPU, "eager"), bucket_of(call, CPU, "eager")
    assert (marks(CPU), plain.how) == ("", "eager")
    with only("chips"):
        assert dispatch(call).scope == GENERIC
        with in_force(VENDOR):
            assert marks(CPU) == "vendor acme 1"
            assert marks(Device("cuda")) == ""
            assert key_of(call, CPU, "eager").file != plain.file
            assert bucket_of(call, CPU, "eager").file != about.file
            env = dispatch(call)
            assert env.scope == VENDOR and env.dialect_op is chips.ops["tan"]
            with_vendor = key_of(call, CPU, "eager")
        with in_force(Scope("acme", source="2")):
            assert key_of(call, CPU, "eager") != with_vendor, "another version of its files"
        assert dispatch(call).scope == GENERIC


def test_a_compiled_program_names_the_dialect_alone(chips: Dialect) -> None:
    answers(chips, 1.0)
    answers(chips, 2.0, VENDOR)
    traced = meta.model.trace(lambda x: meta.tan(x))
    with in_force(VENDOR), only("chips"):
        compiled = meta.vm.compile(traced, X)
        assert compiled.kernels() == {"chips.tan": 1}
        assert compiled(X).numpy()[0] == 2.0
        assert "kernel of the vendor acme" in str(compiled.explain())
    assert meta.op.chips.tan(X).numpy()[0] == 1.0


def test_measuring_takes_each_dialect_once(chips: Dialect) -> None:
    answers(chips, 1.0)
    chips.kernel(meta.op.sinh)(lambda x: x.sinh())
    with registering_as(VENDOR):
        chips.kernel(meta.op.sinh)(lambda x: x.sinh())
    with in_force(VENDOR), only("chips", "torch"):
        found = meta.measure(meta.op.sinh, X, iters=3).records()
    assert [r["dialect"] for r in found if not r["refused"]] == ["chips", "torch"]


@pytest.mark.parametrize("of", ["init", "state_of"])
def test_a_kernel_for_a_chip_has_no_state(of: str, chips: Dialect) -> None:
    options: Any = {"init": lambda device: 1} if of == "init" else {"state_of": meta.op.tan}
    with registering_as(VENDOR), pytest.raises(RegistrationError, match="has state"):
        chips.kernel(meta.op.tan, **options)(lambda x, state: x)


def test_registrations_that_contradict_are_refused(chips: Dialect) -> None:
    answers(chips, 1.0, VENDOR)
    with pytest.raises(RegistrationError, match=r"the vendor acme implements 'chips.tan' twice"):
        answers(chips, 1.0, VENDOR)
    with registering_as(VENDOR), pytest.raises(RegistrationError, match="has a pattern"):
        chips.pattern(lambda x: meta.op.exp(meta.op.tan(x)))(lambda x: x)
    chips.kernel(meta.op.sinh, init=lambda device: 1)(lambda x, state: x)
    with registering_as(VENDOR), pytest.raises(RegistrationError, match="has state"):
        chips.kernel(meta.op.sinh)(lambda x: x)
    with registering_as(VENDOR), pytest.raises(RegistrationError, match="fuses with"):
        meta.op.tvm.relu.dialect.kernel(meta.op.relu)(lambda x: x)


def test_launches_of_nobody_are_empty() -> None:
    assert launch_settings("softmax", CPU) == LaunchSettings()
    assert LaunchSettings().scope == GENERIC
