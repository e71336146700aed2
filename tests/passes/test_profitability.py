"""Rules that rewrite programs, and costs by which a program stays as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import meta
from meta.base import config
from meta.base.device import CPU, Device
from meta.cost.chooser import chooser
from meta.cost.predict import Predictor
from meta.cost.record import Breadth, Cost, Key, key_of
from meta.cost.store import save
from meta.ir import Module, parse, text
from meta.passes import channels_last, dispatch, infer_type
from meta.testing import check
from meta.vm import PassContext
from meta.vm.compiler.pipeline import pipeline
from tests.cost import fake_costs
from tests.cost.fake_costs import cost
from tests.programs.prefixes import inputs

IMAGES = infer_type(
    parse("""
func @main(%x: float32[4, 8, 12, 12], %v: float32[8, 8, 3, 3], %w: float32[8, 8, 3, 3]) {
  %a = conv2d(%x, %v)
  %b = relu(%a)
  %c = conv2d(%b, %w)
  return %c
}""")
)
ROWS = infer_type(
    parse("""
func @main(%x: float16[66, 70], %w: float16[67, 70]) {
  %y = dense(%x, %w)
  return %y
}""")
)
PROJECTIONS = infer_type(
    parse("""
func @main(%x: float32[4, 16], %v: float32[8, 16], %w: float32[8, 16]) attrs(arrays=2) {
  %a = dense(%x, %v)
  %b = dense(%x, %w)
  %c = multiply(%a, %b)
  return %c
}""")
)
ON_CPU = PassContext(
    config={
        "align_products": {"devices": ("cpu",), "least_work": 1},
        "join_products": {"devices": ("cpu",)},
    },
    disabled=["prepare"],
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    with fake_costs.store(tmp_path), meta.dialect.only("torch"), ON_CPU:
        yield


def measured(module: Module, rule: str, time: Callable[[Key], float | None]) -> None:
    """Keep the time of every kernel of a program, with the rule and without it."""
    for disabled in ([], [rule]):
        with PassContext(disabled=disabled):
            lowered = pipeline(CPU)(module)
        for launch in Predictor(lowered, CPU).launches():
            found = time(launch.key)
            if found is not None:
                save(launch.key, [cost("torch", found)])


def taken(module: Module, sign: str) -> bool:
    """Whether a program is as the rule makes it, which it then says; it computes the same."""
    lowered = pipeline(CPU)(module)
    run = meta.vm.compile(module, *inputs(module))
    expected = meta.vm.compile(module, *inputs(module), opt_level=0)(*inputs(module))
    check(run(*inputs(module)), expected, 1e-2, 1e-2)
    return sign in text(lowered)


def by_operator(**times: float) -> Callable[[Key], float | None]:
    return lambda key: times.get(key.operator, 1.0)


def layouts(last: float, first: float, turn: float) -> Callable[[Key], float | None]:
    """Return the times of convolutions with the channels last and first, and of transposes."""

    def time(key: Key) -> float:
        if "permute_dims" in key.call:
            return turn
        if "conv2d" in key.call:
            return last if "NHWC" in key.call else first
        return 1.0

    return time


@pytest.mark.parametrize(
    ("time", "last"),
    [
        (layouts(last=10.0, first=30.0, turn=5.0), True),
        (layouts(last=10.0, first=12.0, turn=5.0), False),  # to transpose takes more than it gains
        (layouts(last=10.0, first=10.0, turn=0.001), True),  # hardly slower
        (layouts(last=10.0, first=9.0, turn=0.1), False),
    ],
)
def test_the_channels_are_last_where_that_is_faster(
    time: Callable[[Key], float | None], last: bool
) -> None:
    assert taken(IMAGES, "NHWC")
    measured(IMAGES, "channels_last", time)
    assert taken(IMAGES, "NHWC") is last


DEEP = infer_type(
    parse("""
func @main(%x: float32[4, 8, 16, 16], %u: float32[16, 8, 3, 3], %v: float32[16, 16, 3, 3], \
%w: float32[16, 16, 3, 3]) {
  %a = conv2d(%x, %u)
  %b = conv2d(%a, %v)
  %c = conv2d(%b, %w)
  %d = mean(%c, (2, 3))
  return %d
}""")
)
MIXED = infer_type(
    parse("""
func @main(%x: float32[4, 8, 16, 16], %u: float32[16, 8, 3, 3], %v: float32[16, 16, 3, 3], \
%w: float32[16, 16, 3, 3]) {
  %a = conv2d(%x, %u)
  %t = permute_dims(%a, axes=(0, 2, 3, 1))
  %p = permute_dims(%v, axes=(0, 2, 3, 1))
  %b = conv2d(%t, %p, layout="NHWC", kernel_layout="OHWI", out_layout="NHWC")
  %q = permute_dims(%w, axes=(0, 2, 3, 1))
  %c = conv2d(%b, %q, layout="NHWC", kernel_layout="OHWI", out_layout="NHWC")
  %d = mean(%c, (1, 2))
  return %d
}""")
)


def test_each_convolution_has_its_layout() -> None:
    """The first one is faster with the channels first, and the others with the channels last."""

    def time(key: Key) -> float:
        if "conv2d" not in key.call:
            return 1.0
        last, early = "NHWC" in key.call, "16, 8, 3, 3" in key.call or "16, 3, 3, 8" in key.call
        return 30.0 if last is early else 10.0

    measured(DEEP, "channels_last", time)
    assert text(pipeline(CPU)(DEEP)).count('out_layout="NHWC"') in (0, 3)
    measured(MIXED, "channels_last", time)
    assert text(pipeline(CPU)(DEEP)).count('out_layout="NHWC"') == 2
    assert taken(DEEP, "NHWC")


@pytest.mark.parametrize(
    ("module", "rule", "sign", "times"),
    [
        (ROWS, "align_products", "%padded", {"pad": 20.0, "dense": 5.0}),
        (PROJECTIONS, "join_products", "%joined", {"concat": 20.0, "dense": 5.0}),
    ],
)
def test_products_stay_as_they_are_where_that_is_faster(
    module: Module, rule: str, sign: str, times: dict[str, float]
) -> None:
    assert taken(module, sign)
    measured(module, rule, by_operator(**times))
    assert not taken(module, sign)


def test_a_rule_decides_where_a_kernel_was_not_measured() -> None:
    slow = layouts(last=30.0, first=10.0, turn=5.0)
    measured(IMAGES, "channels_last", lambda key: None if "NHWC" in key.call else slow(key))
    assert taken(IMAGES, "NHWC")
    measured(IMAGES, "channels_last", slow)
    assert not taken(IMAGES, "NHWC")
    with config.override(META_TUNE="off"):
        assert taken(IMAGES, "NHWC")


@pytest.fixture
def asked(measured_by: Any) -> Iterator[Asked]:
    """What is measured, and takes what a test says that it does."""
    found = Asked()

    def measurer(subjects: Any, device: Device, how: str) -> Iterator[tuple[int, list[Cost]]]:
        for place, subject in enumerate(subjects):
            key = key_of(subject, device, how)
            found.setdefault(key.call, set()).add(chooser().breadth)
            yield place, [cost("torch", found.time(key) or 0.0)]

    measured_by(measurer)
    fake_costs.keep_peaks(copy=1e5, launch=0.1)
    with meta.cost.measured():
        yield found


class Asked(dict[str, set[Breadth]]):
    """Calls that were measured, and with whose configurations; what each takes."""

    time: Callable[[Key], float | None]


@pytest.mark.parametrize(
    ("first", "breadths"),
    [
        (30.0, {Breadth.DEFAULTS}),
        (11.5, {Breadth.DEFAULTS}),  # a tenth less is not enough, either
        (10.5, {Breadth.DEFAULTS, Breadth.LIBRARIES}),  # it might be, and is not
        (5.0, {Breadth.DEFAULTS, Breadth.LIBRARIES, Breadth.UNFUSED}),  # and it is taken
    ],
)
def test_of_a_slower_program_products_alone_are_measured(
    first: float, breadths: set[Breadth], asked: Asked
) -> None:
    asked.time = layouts(last=10.0, first=first, turn=0.1)
    lowered = text(pipeline(CPU)(IMAGES))
    assert ("NHWC" in lowered) is (first > 5.0)
    assert "relu(x=float32[4, 10, 10, 8])" in asked
    assert ("relu(x=float32[4, 8, 10, 10])" in asked) is (Breadth.LIBRARIES in breadths)
    products = [found for call, found in asked.items() if "conv2d" in call and "NHWC" not in call]
    assert products == [breadths] * 2
    asked.clear()
    assert text(pipeline(CPU)(IMAGES)) == lowered
    assert not asked


@pytest.mark.parametrize(("turn", "last"), [(5.0, True), (20.0, False)])
def test_channels_last_are_tried_where_the_rule_leaves_a_program_as_it_is(
    turn: float, last: bool, asked: Asked
) -> None:
    """A kernel that takes more bytes than its images is one on the CPU."""
    module = infer_type(
        parse("""
func @main(%x: float32[1, 64, 4, 4], %w: float32[64, 64, 3, 3]) -> float32[1, 64, 2, 2] {
  %y = conv2d(%x, %w)
  return %y
}""")
    )
    asked.time = layouts(last=10.0, first=30.0, turn=turn)
    with config.override(META_TUNE="off"):
        assert "NHWC" not in text(pipeline(CPU)(module))
    assert taken(module, "NHWC") is last


def test_a_plan_of_layouts_is_of_what_is_measured_in_the_same_compilation(asked: Asked) -> None:
    def time(key: Key) -> float:
        if "conv2d" not in key.call:
            return 1.0
        last, early = "NHWC" in key.call, "16, 8, 3, 3" in key.call or "16, 3, 3, 8" in key.call
        return 30.0 if last is early else 10.0

    asked.time = time
    lowered = text(pipeline(CPU)(DEEP))
    assert lowered.count('out_layout="NHWC"') == 2
    asked.clear()
    assert text(pipeline(CPU)(DEEP)) == lowered
    assert not asked


def test_programs_are_compared_once_per_rule() -> None:
    """Rules that follow do not compare again while a program is lowered for one."""
    measured(IMAGES, "channels_last", layouts(last=10.0, first=30.0, turn=5.0))
    lowered: list[Module] = []

    def again(module: Module) -> Module:
        raise AssertionError("it is lowered for a rule already")

    def lower(module: Module) -> Module:
        lowered.append(module)
        return dispatch(channels_last(module, device=CPU, lower=again), device=CPU)

    changed = channels_last(IMAGES, device=CPU, lower=lower)
    assert len(lowered) == 2
    assert "NHWC" in text(changed)
    assert text(channels_last(changed, device=CPU, lower=again)) == text(changed)


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        (IMAGES, "channels_last"),
        (DEEP, "channels_last"),
        (ROWS, "align_products"),
        (PROJECTIONS, "join_products"),
    ],
)
def test_of_equal_programs_one_is_lowered(
    module: Module, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule's and the one that was given, though a plan of layouts gives one of them again; and
    not as far as to where results live.
    """
    measured(module, rule, by_operator())
    lowered: list[Module] = []

    def predicted(module: Module, device: Device) -> Predictor:
        lowered.append(module)
        return Predictor(module, device)

    monkeypatch.setattr(sys.modules["meta.passes.profitability"], "Predictor", predicted)
    pipeline(CPU)(module)
    assert len(lowered) == 2
    assert not any("arena=" in text(one) for one in lowered)
