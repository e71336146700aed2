"""Who runs a call: priorities, preferences, refusals and their reasons, dialects of strangers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import meta
from meta.base.device import Device
from meta.base.errors import DispatchError, RegistrationError, UnknownName
from meta.base.registry import OPERATORS
from meta.cli.card import card
from meta.dialect import FUSED_ONLY, HANDWRITTEN, LIBRARY, REFERENCE, Dialect, OpEnv, Unsupported
from meta.dialect.core import candidates
from meta.dialect.core.preference import current
from meta.ir import parse, structural_equal
from meta.op.core import CallValues, Op, Tensor, op
from meta.testing import check
from tests.registered import remove_dialects

X = meta.array([1.0, 2.0])
CPU = Device("cpu")
Make = Callable[..., Dialect]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make dialects that are forgotten after the test."""
    made: list[Dialect] = []

    def new(name: str, **options: Any) -> Dialect:
        made.append(Dialect(name, **{"devices": ("cpu",), **options}))
        return made[-1]

    yield new
    remove_dialects(*made)


@pytest.fixture
def twice() -> Iterator[Op]:
    """An operator that nobody implements yet."""

    @op
    def test_twice(x: Tensor, by: int = 2) -> Tensor:
        return x

    yield test_twice
    OPERATORS.remove("test_twice")


def answer(dialect: Dialect, base: Op, value: float, **options: Any) -> None:
    """Implement an operator by a kernel that returns ``value`` everywhere."""
    dialect.kernel(base, **options)(lambda x: x * 0.0 + value)


def value(base: Op, *args: Any) -> float:
    return base(X, *args).numpy()[0].item()


# The order.


def test_the_larger_plevel_wins_then_the_first_dialect(make: Make, twice: Op) -> None:
    one, two, three = (make(f"t{i}", plevel=p) for i, p in ((1, 5), (2, 15), (3, 15)))
    answer(three, twice, 3.0, plevel=REFERENCE)
    assert value(twice) == 3.0
    answer(one, twice, 1.0)
    assert value(twice) == 1.0, "by the dialects' order, in whichever order they were loaded"
    answer(two, twice, 2.0)
    assert value(twice) == 2.0, "what was decided before is decided anew"
    assert [c.dialect.name for c in candidates(twice, current(), CPU)] == ["t2", "t1", "t3"]


def test_a_level_may_hold_on_one_kind_of_device_only(make: Make, twice: Op) -> None:
    both = ("cpu", "cuda")
    one, two = make("t1", devices=both, plevel=10), make("t2", devices=both, plevel=REFERENCE)
    answer(one, twice, 1.0)
    answer(two, twice, 2.0, plevel={"cpu": LIBRARY})
    assert value(twice) == 2.0
    order = {
        kind: [c.dialect.name for c in candidates(twice, current(), Device(kind))] for kind in both
    }
    assert order == {"cpu": ["t2", "t1"], "cuda": ["t1", "t2"]}
    explanation = meta.explain(twice, X)
    assert [c.plevel for c in explanation] == [15, 10]
    assert "plevel 15" in str(explanation)
    assert repr(meta.op.t2.test_twice).endswith("library 15 on cpu, reference 5 on cuda>")
    here = {k["dialect"]: k for k in card(twice)["kernels"]}
    assert here["t2"]["plevels"] == {"cpu": 15, "cuda": 5}
    assert here["t2"]["level"] == "library 15 on cpu, reference 5 on cuda"
    assert here["t1"]["here"]["cpu"] == "if declined by t2"


def test_a_level_for_a_device_of_others_is_refused(make: Make, twice: Op) -> None:
    with pytest.raises(RegistrationError, match="for a device of others") as caught:
        answer(make("t1"), twice, 1.0, plevel={"cuda": LIBRARY})
    assert "'cuda'" in str(caught.value)


def test_named_levels() -> None:
    assert FUSED_ONLY < REFERENCE < meta.dialect.COMPILER < LIBRARY < HANDWRITTEN


def test_a_fused_only_kernel_never_runs_alone(make: Make, twice: Op) -> None:
    answer(make("t1"), twice, 1.0, plevel=FUSED_ONLY)
    for context in (meta.dialect.prefer("t1"), meta.dialect.only("t1")):
        with context, pytest.raises(DispatchError, match="fused pattern only"):
            twice(X)


# Eager calls.


def test_an_eager_call_compiles_nothing_if_another_accepts(make: Make, twice: Op) -> None:
    answer(make("t1", plevel=HANDWRITTEN, compiles=True), twice, 1.0)
    answer(
        make("t2", plevel=REFERENCE), twice, 2.0, when=lambda c: "odd" if c.args.by % 2 else None
    )
    answer(make("t3", plevel=LIBRARY, compiles=True), twice, 3.0)
    assert [value(twice, by) for by in (2, 3)] == [2.0, 1.0], "else the highest that compiles"
    found = meta.explain(twice, X)
    assert [c.dialect_op.dialect.name for c in found] == ["t2", "t1", "t3"]
    assert found.chosen.dialect_op.dialect.name == "t2"
    for choice in (meta.dialect.prefer("t3"), meta.dialect.only("t3")):
        with choice:
            assert value(twice) == 3.0
            assert meta.explain(twice, X).chosen.dialect_op.dialect.name == "t3"
    assert meta.op.t1.test_twice(X).numpy()[0] == 1.0


def test_kernels_that_are_compiled_once_serve_eager_calls(make: Make, twice: Op) -> None:
    answer(make("t1", plevel=HANDWRITTEN, compiles=True, once=(twice.family,)), twice, 1.0)
    answer(make("t2", plevel=HANDWRITTEN, compiles=True, once=("pool",)), twice, 2.0)
    answer(make("t3", plevel=LIBRARY), twice, 3.0)
    assert value(twice) == 1.0
    order = [c.dialect.name for c in candidates(twice, current(), CPU, eager=True)]
    assert order == ["t1", "t3", "t2"]


def test_a_compiled_program_chooses_by_level_alone(make: Make, twice: Op) -> None:
    answer(make("t1", plevel=LIBRARY, compiles=True), twice, 1.0)
    answer(make("t2", plevel=REFERENCE), twice, 2.0)
    traced = meta.model.trace(lambda x: twice(x))
    executable = meta.vm.compile(traced, X)
    assert value(twice) == 2.0 and traced(X).numpy()[0] == 2.0, "so is the interpreter"
    assert executable(X).numpy()[0] == 1.0
    assert value(twice) == 2.0, "what a program compiled is no reason for an eager call"
    assert executable.explain()[0].calls[0].chosen.dialect_op.dialect.name == "t1"
    assert [c.dialect.name for c in candidates(twice, current(), CPU)] == ["t1", "t2"]


# Preferences.


@pytest.fixture
def three(make: Make, twice: Op) -> Op:
    """An operator with three implementations; t3 has the largest plevel."""
    for i, plevel in ((1, 5), (2, 10), (3, 15)):
        answer(make(f"t{i}", plevel=plevel), twice, float(i))
    return twice


def test_prefer_only_and_exclude(three: Op) -> None:
    assert value(three) == 3.0
    with meta.dialect.prefer("t1"):
        assert value(three) == 1.0
    with meta.dialect.prefer("t2", "t1"):
        assert value(three) == 2.0
        with meta.dialect.exclude("t2"):
            assert value(three) == 1.0
            with meta.dialect.exclude("t1"):
                assert value(three) == 3.0
        assert value(three) == 2.0
    with meta.dialect.only("t1", "t2"):
        assert value(three) == 2.0
        with meta.dialect.only("t1"):
            assert value(three) == 1.0
        with meta.dialect.prefer("t3"):
            assert value(three) == 2.0
    assert value(three) == 3.0


def test_a_preference_for_one_operator(three: Op) -> None:
    name = three.name
    with meta.dialect.prefer(**{name: "t1"}):
        assert value(three) == 1.0
        with meta.dialect.exclude("t1"):
            assert value(three) == 3.0
    with meta.dialect.prefer("t2", **{name: ["t3", "t1"]}):
        assert value(three) == 3.0
        with meta.dialect.exclude("t3"):
            assert value(three) == 1.0
    with meta.dialect.prefer("t2", softmax="torch"):
        assert value(three) == 2.0
    with pytest.raises(UnknownName, match="softmx"):
        meta.dialect.prefer(softmx="torch")
    with pytest.raises(UnknownName, match="t9"):
        meta.dialect.prefer(softmax="t9")


def test_a_preference_for_one_operator_of_a_program() -> None:
    x = meta.ones((3, 4))
    model = meta.model.trace(lambda x: meta.softmax(meta.exp(x) + x))
    with meta.dialect.prefer("torch"):
        assert meta.vm.compile(model, x).kernels()["torch.softmax"] == 1
    with meta.dialect.prefer("tvm", softmax="torch"):
        kernels = meta.vm.compile(model, x).kernels()
    assert kernels["torch.softmax"] == 1 and not any(
        "torch" in k for k in kernels if "soft" not in k
    )


def test_a_preference_ends_with_an_exception(three: Op) -> None:
    with pytest.raises(ZeroDivisionError), meta.dialect.only("t1"):
        1 / 0  # noqa: B018
    assert value(three) == 3.0


def test_entering_a_preference_again_is_free(three: Op) -> None:
    with meta.dialect.only("t1"):
        first = current()
    with meta.dialect.only("t1"):
        assert current() is first


def test_threads_have_preferences_of_their_own(three: Op) -> None:
    found: dict[str, float] = {}
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait()
        found["other"] = value(three)
        with meta.dialect.prefer("t2"):
            found["other prefers"] = value(three)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with meta.dialect.only("t1"):
        inside.set()
        done.wait()
        found["mine"] = value(three)
    thread.join()
    assert found == {"other": 3.0, "other prefers": 2.0, "mine": 1.0}


@pytest.mark.parametrize("choose", [meta.dialect.prefer, meta.dialect.only, meta.dialect.exclude])
def test_an_unknown_name(choose: Callable[..., Any]) -> None:
    with pytest.raises(UnknownName) as caught:
        choose("torhc")
    assert "there is no dialect named 'torhc'" in str(caught.value)
    assert "did you mean 'torch'?" in str(caught.value)


def test_a_dialect_operator_runs_on_its_dialect(three: Op) -> None:
    t1 = meta.op.t1.test_twice
    assert t1(X).numpy()[0] == 1.0
    assert repr(t1) == "<dialect operator t1.test_twice, reference 5>"
    with pytest.raises(UnknownName, match="did you mean 'test_twice'"):
        meta.op.t1.test_twise  # noqa: B018
    with meta.dialect.exclude("t1"), pytest.raises(DispatchError):
        t1(X)
    assert meta.op.torch.relu(X).numpy().tolist() == [1.0, 2.0]


# Refusals.


def test_refusals_and_their_reasons(make: Make, twice: Op) -> None:
    answer(make("t1"), twice, 1.0, when=lambda call: "only on Sundays")
    answer(make("t2", devices=("cuda",)), twice, 2.0)
    answer(make("t3", probe=lambda: "its library is missing"), twice, 3.0)
    answer(make("t4"), twice, 4.0)

    @make("t5").op(twice)
    def refuses(call: CallValues) -> OpEnv:
        raise Unsupported("five is too many")

    with meta.dialect.exclude("t4"), pytest.raises(DispatchError) as caught:
        twice(X, 3)
    text = str(caught.value)
    assert text.startswith("test_twice: no dialect accepts this call")
    assert "found:    test_twice(x=float32[2], by=3) on cpu" in text
    assert f"at:       {__file__}:" in text
    for name, reason in (
        ("t1", "only on Sundays"),
        ("t2", "does not run on cpu, only on cuda"),
        ("t3", "its library is missing"),
        ("t4", "excluded by exclude()"),
        ("t5", "five is too many"),
    ):
        line = next(ln for ln in text.splitlines() if ln.strip().startswith(name))
        assert f"plevel 10  {__file__}:" in line
        assert line.endswith(f"refuses: {reason}")
    with meta.dialect.only("t1"), pytest.raises(DispatchError, match="not among only"):
        twice(X)
    assert value(twice) == 4.0


def test_nothing_is_registered(twice: Op) -> None:
    with pytest.raises(DispatchError, match="none is registered"):
        twice(X)


def test_a_refusal_depends_on_the_call(make: Make, twice: Op) -> None:
    answer(make("t1"), twice, 1.0, when=lambda c: "odd" if c.args.by % 2 else None)
    answer(make("t2", plevel=REFERENCE), twice, 2.0)
    assert [value(twice, by) for by in (2, 3, 4)] == [1.0, 2.0, 1.0]


def test_a_broken_maker_is_not_passed_over(make: Make, twice: Op) -> None:
    @make("t1").op(twice)
    def broken(call: CallValues) -> OpEnv:
        raise RuntimeError("the library crashed")

    answer(make("t2", plevel=REFERENCE), twice, 2.0)
    with pytest.raises(RuntimeError, match="the library crashed"):
        twice(X)


def test_explain(three: Op) -> None:
    found = meta.explain(three, X)
    assert found.chosen.dialect_op.dialect.name == "t3"
    assert [c.dialect_op.dialect.name for c in found] == ["t3", "t2", "t1"]
    assert str(found).splitlines()[0] == "test_twice(x=float32[2], by=2) on cpu -> float32[2]"
    with meta.dialect.only("t1"):
        found = meta.explain(three, X)
    assert found.chosen.dialect_op.dialect.name == "t1"
    assert "refuses: not among only('t1')" in str(found)


# The cache.


def test_a_decision_is_made_once_per_kind_of_call(make: Make, twice: Op) -> None:
    asked = []

    @make("t1").op(twice)
    def counts(call: CallValues) -> OpEnv:
        asked.append(str(call))
        return OpEnv(lambda x: x.clone(), allocates=True)

    twice(X)
    twice(X)
    twice(meta.array([5.0, 6.0]), by=2)
    twice(X, 2)
    # By its types the third call is the first; a default may count as a call of its own.
    assert len(set(asked)) == 1
    twice(X, 3)
    twice(meta.array([1.0]))
    twice(meta.array([1.0, 2.0], "float64"))
    assert len(set(asked)) == 4
    with meta.dialect.only("t1"):
        twice(X)
    before = len(asked)
    with meta.dialect.only("t1"):
        twice(X)
    assert len(asked) == before


def test_numbers_at_run_time_share_a_kernel(make: Make) -> None:
    asked = []
    dialect = make("t1", plevel=HANDWRITTEN)

    @dialect.op(meta.op.add)
    def counts(call: CallValues) -> OpEnv:
        asked.append(call)
        return OpEnv(lambda x1, x2: x1 + x2, allocates=True)

    results = [meta.add(X, float(i)).numpy()[0].item() for i in range(5)]
    assert results == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert len(asked) == 1
    meta.add(X, 1)
    assert len(asked) == 2


def test_values_that_are_known_now_depend_on_the_numbers() -> None:
    assert [meta.add(2, i) for i in range(3)] == [2, 3, 4]


# Registration.


def test_a_kernel_is_registered_once_and_names_arguments(make: Make, twice: Op) -> None:
    dialect = make("t1")
    answer(dialect, twice, 1.0)
    with pytest.raises(RegistrationError) as caught:
        answer(dialect, twice, 2.0)
    assert "implements 'test_twice' twice" in str(caught.value)
    assert str(caught.value).count(__file__) == 3
    with pytest.raises(RegistrationError) as caught:
        make("t2").kernel(twice)(lambda x, of: x)
    assert "asks for ['of']" in str(caught.value)
    assert "'x', 'by', 'out', 'call'" in str(caught.value)


def test_a_dialect_is_registered_once(make: Make) -> None:
    make("t1")
    with pytest.raises(RegistrationError) as caught:
        Dialect("t1", devices=("cpu",))
    assert "the dialect 't1' is defined twice" in str(caught.value)


def test_a_kernel_may_take_the_call_the_result_and_any_order(make: Make, twice: Op) -> None:
    seen = []

    def kernel(out: Any, by: int, call: CallValues, x: Any) -> None:
        seen.append((by, call.op.name))
        out.copy_(x * by)

    make("t1").kernel(twice)(kernel)
    assert twice(X, 5).numpy().tolist() == [5.0, 10.0]
    assert seen == [(5, "test_twice")]


def test_strided_arguments_are_made_compact_for_kernels_that_need_it(make: Make, twice: Op) -> None:
    seen = []

    def kernel(x: Any) -> Any:
        seen.append(x.is_contiguous())
        return x.contiguous() * 1

    make("t1").kernel(twice, strided=False)(kernel)
    make("t2").kernel(twice, strided=True)(kernel)
    strided = meta.ndarray(meta.array([[1.0, 2.0], [3.0, 4.0]]).torch().T)
    for name in ("t1", "t2"):
        with meta.dialect.only(name):
            assert twice(strided).numpy().tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert seen == [True, False]


def test_a_traced_dialect_operator_stays_with_its_dialect() -> None:
    @meta.model.trace
    def function(x: Any) -> Any:
        return meta.op.torch.relu(x) + meta.op.tvm.exp(x)

    x = meta.array([1.0, -2.0])
    program = function.program(x).module
    names = [b.value.callee.name for b in program.main.body.bindings]
    assert names == ["torch.relu", "tvm.exp", "add"]
    assert structural_equal(parse(str(program)), program)
    executable = meta.vm.compile(function, x)
    kernels = executable.kernels()
    assert "torch.relu" in kernels
    assert any(k.startswith("tvm.") and "exp" in k for k in kernels)
    x.requires_grad = True
    function(x).backward([1.0, 1.0])
    check(x.grad, np.array([1.0 + np.exp(1.0), np.exp(-2.0)]))


def test_a_dialect_that_declined_one_shape_is_asked_for_the_next(make: Make) -> None:
    def of_two_elements(call: Any) -> str | None:
        return None if call.out.static_shape == (2,) else "for two elements only"

    picky = make("picky", plevel=50)
    picky.kernel(meta.add, when=of_two_elements)(lambda x1, x2: x1 * 0.0 + 42.0)
    for extent in (3, 4):
        ones = meta.ones((extent,))
        assert meta.add(ones, ones).tolist() == [2.0] * extent
    assert meta.add(meta.ones((2,)), meta.ones((2,))).tolist() == [42.0, 42.0]
