"""The predicted time of programs: of what was measured, and of what was not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import meta
from meta.analysis import cost
from meta.base import config
from meta.base.device import CPU
from meta.base.errors import DeviceError
from meta.cost.flops import Work
from meta.cost.predict import Time
from meta.cost.record import Cost, bucket_of, key_of
from meta.cost.roofline import COPY, DEFAULTS, Peaks, peak_cost, peaks_key, peaks_of
from meta.cost.store import save
from meta.ir import Module, parse
from meta.passes import dispatch, infer_type, tune
from meta.vm.benchmark.roofline import measure_peaks
from tests.cost import fake_costs
from tests.cost.fake_costs import keep_costs, keep_peaks


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    with fake_costs.store(tmp_path), meta.dialect.only("torch"):
        yield


def program(*lines: str, head: str = "%x: float32[64, 100]") -> Module:
    body = "\n".join((*lines, f"return {lines[-1].split(' ')[0]}"))
    return infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))


CHAIN = program("%a = exp(%x)", "%b = tanh(%a)", "%c = reshape(%b, shape=(6400,))")


def test_measured_calls_take_what_was_measured() -> None:
    for call, time in zip(fake_costs.calls(CHAIN), (10.0, 4.0), strict=True):
        keep_costs(call, {"torch": time, "tvm": 1.0})
    for module in (CHAIN, dispatch(CHAIN, device=CPU)):
        report = cost(module)
        named = "torch" if module is not CHAIN else "tvm"
        expected = (10.0, 4.0) if module is not CHAIN else (1.0, 1.0)
        assert [(r["kernel"], r["microseconds"]) for r in report.records()] == [
            (named, time) for time in expected
        ]
        assert (report.total, report.measured_share) == (sum(expected), 1.0)
        assert "100% measured" in str(report)
        assert "estimated" not in str(report)


def test_what_the_allowed_dialects_take_counts_where_they_alone_are_allowed() -> None:
    with meta.cost.measured():
        module = dispatch(tune(CHAIN, device=CPU), device=CPU)
    assert cost(module).measured_share == 1.0
    with meta.dialect.exclude("tvm"):  # nor were they measured among all others
        assert cost(module).measured_share == 0.0


def test_what_was_not_measured_is_estimated() -> None:
    keep_costs(next(fake_costs.calls(CHAIN)), {"torch": 10.0})
    moved = 2 * 4 * 6400
    expected = moved / DEFAULTS["cpu"].copy + DEFAULTS["cpu"].launch
    report = cost(dispatch(CHAIN, device=CPU))
    assert [row.time for row in report.rows] == [
        Time(measured=10.0),
        Time(estimated=pytest.approx(expected)),
    ]
    assert report.measured_share == pytest.approx(10 / (10 + expected))
    assert report.from_defaults
    assert "estimated from the defaults of the kind of device" in str(report)
    keep_peaks(copy=moved, launch=3.0)
    report = cost(dispatch(CHAIN, device=CPU))
    assert report.rows[1].time == Time(estimated=pytest.approx(4.0))
    assert not report.from_defaults
    assert "estimated from the device's peaks" in str(report)


def test_a_product_is_estimated_by_its_operations() -> None:
    keep_peaks(copy=1e9, launch=0.5, product=2 * 64 * 100)
    report = cost(program("%y = dense(%x, %x)"))
    assert report.total == pytest.approx(64 + 0.5)


def test_nothing_is_known_where_tuning_is_off() -> None:
    keep_costs(next(fake_costs.calls(CHAIN)), {"torch": 10.0})
    with config.override(META_TUNE="off"):
        assert cost(CHAIN).measured_share == 0.0


def test_calls_of_about_these_extents_count() -> None:
    call = next(fake_costs.calls(CHAIN))
    found = [Cost("torch", (), fake_costs.timing(7.0))]
    save(key_of(call, CPU, "eager"), found, bucket=bucket_of(call, CPU, "eager"))
    near = program("%a = exp(%x)", head="%x: float32[64, 108]")
    far = program("%a = exp(%x)", head="%x: float32[640, 108]")
    assert cost(near).rows[0].time == Time(measured=7.0)
    assert cost(far).measured_share == 0.0


FUSED = """
func @main(%p: bool[], %x: float32[64, 100]) -> float32[64, 100] {
  %y: float32[64, 100] = @fused(%x)
  %z: float32[64, 100] = @twice(%y)
  %u: float32[64, 100] = if %p {
    %d: float32[64, 100] = torch.exp(%z)
    yield %d
  } else {
    yield %z
  }
  return %u
}

func @fused(%x: float32[64, 100]) -> float32[64, 100] attrs(fused="tvm") {
  %a: float32[64, 100] = tvm.tanh(%x)
  %b: float32[64, 100] = tvm.add(%a, %x)
  return %b
}

func @twice(%x: float32[64, 100]) -> float32[64, 100] {
  %a: float32[64, 100] = @fused(%x)
  %b: float32[64, 100] = torch.exp(%a)
  return %b
}
"""


def test_fused_functions_blocks_and_functions() -> None:
    module = parse(FUSED)
    keep_costs(module.functions["fused"], {"tvm": 5.0})
    keep_costs(next(fake_costs.calls(program("%a = exp(%x)"))), {"torch": 2.0})
    report = cost(module)
    assert [row.time.measured for row in report.rows] == [5.0, 7.0, 2.0]
    assert [(row.operator, row.kernel) for row in report.rows] == [
        ("fused", "tvm"),
        ("twice", ""),
        ("If", ""),
    ]
    keep_costs(next(fake_costs.calls(program("%a = exp(%x)"))), {"tvm": 2.0})
    assert [row.known for row in cost(module).rows] == [
        "measured",
        "partly measured",
        "estimated",
    ]


def test_a_report_is_json_and_html() -> None:
    report = cost(CHAIN)
    assert json.loads(json.dumps(report.records()))[0]["operator"] == "exp"
    assert "<table" in report._repr_html_()
    assert cost(program("%y = reshape(%x, shape=(6400,))")).measured_share == 1.0
    with pytest.raises(DeviceError, match="not present"):
        cost(CHAIN, "cuda:77")


def test_peaks_are_measured_once() -> None:
    found = measure_peaks()
    assert found.measured
    assert all(rate > 0 for rate in (found.copy, found.launch, found.gap, *found.products.values()))
    assert measure_peaks() == peaks_of(CPU) == found
    assert found.estimate(Work(0, 0), "float32") == found.launch


@pytest.mark.cuda
def test_peaks_of_a_gpu() -> None:
    found = measure_peaks("cuda", anew=True)
    assert found.measured
    assert found.launch < found.gap  # within a graph, and by the host
    assert found.rate("float16") > 2 * found.rate("float32")
    assert 1e5 < found.copy < 1e8  # from 100 GB to 100 TB in a second


def test_peaks_that_lack_something_are_not_used() -> None:
    save(peaks_key(CPU), [peak_cost(COPY, 10, fake_costs.timing(1.0))])
    assert peaks_of(CPU) is DEFAULTS["cpu"]


def test_the_roofline() -> None:
    peaks = Peaks(copy=10.0, products={"float32": 100.0, "float16": 400.0}, launch=1.0, gap=5.0)
    assert peaks.estimate(Work(1000, 20), "float32") == 11.0
    assert peaks.estimate(Work(1000, 20), "float16") == 3.5
    assert peaks.estimate(Work(1000, 200), "int32") == 21.0
