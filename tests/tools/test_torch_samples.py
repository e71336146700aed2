"""torch's own operator samples: `meta` gives what torch gives, results and gradients.

One test per entry of torch's database that has an adapter, with the first few samples of each, and
one with all of them. All are slow.
"""

from __future__ import annotations

import json

import pytest

import meta
from tools.torch_samples import report
from tools.torch_samples.__main__ import main
from tools.torch_samples.check import Calls
from tools.torch_samples.decline import Declined
from tools.torch_samples.entries import ENTRIES
from tools.torch_samples.families import ADAPTERS
from tools.torch_samples.run import Outcome, run

FEW = 3
LEAST_COVERED = 300


def check(outcome: Outcome) -> None:
    assert not outcome.failures, "\n".join(outcome.failures)


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(ADAPTERS))
def test_the_first_samples_agree(key: str) -> None:
    with meta.dialect.prefer("torch"):
        outcome = run(key, limit=FEW)
    check(outcome)
    assert outcome.ran, f"all samples are declined: {outcome.declined}"


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(ADAPTERS))
def test_all_samples_agree(key: str) -> None:
    with meta.dialect.prefer("torch"):
        outcome = run(key)
    check(outcome)
    assert outcome.covered, f"most samples are declined: {outcome.declined}"


def test_adapters_are_for_entries_that_there_are_and_many() -> None:
    assert ADAPTERS.keys() <= ENTRIES.keys()
    assert len(ADAPTERS) >= LEAST_COVERED


def test_a_wrong_adapter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "sin", meta.cos)
    outcome = run("sin", limit=1)
    assert len(outcome.failures) == 2 and not outcome.passed
    assert "sample 0 in float32: AssertionError: result" in outcome.failures[0]


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_gradient(input: meta.ndarray) -> meta.ndarray:
        return (
            meta.sin(input.to(dtype="float64"))
            if input.dtype == "float32"
            else meta.array(meta.sin(input))
        )

    monkeypatch.setitem(ADAPTERS, "sin", without_gradient)
    outcome = run("sin", limit=1)
    assert any("gradient of tensor 0" in f for f in outcome.failures)


def test_what_is_declined_is_counted_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(input: meta.ndarray) -> meta.ndarray:
        raise Declined("for a reason")

    monkeypatch.setitem(ADAPTERS, "sin", refuse)
    outcome = run("sin")
    assert outcome.declined.keys() == {"for a reason"} and not outcome.covered
    total = report.Total(["sin", "svd"], [outcome])
    assert total.uncovered == ["sin", "svd"]
    assert "sin: declined" in report.text(total, declined=True)


def test_calls_of_operators_are_counted() -> None:
    calls = Calls()
    with calls.counted():
        meta.array([1.0]) + meta.exp(meta.array([1.0]))
    meta.exp(meta.array([1.0]))
    assert calls.number == 2


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--exact", "nonzero", "svd", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["entries"] == 2 and found["counts"]["passing"] == 1
    assert found["uncovered"] == ["svd"]
    assert found["outcomes"][0]["declined"] == {"nonzero: x has no axis": 4}


@pytest.mark.slow
def test_several_processes_find_what_one_finds(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for jobs in ("1", "2"):
        assert main(["--filter", "sin", "--jobs", jobs, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "argv",
    [["--exact", "no_such_entry"], ["--filter", "no_such"], ["--jobs", "0"], ["--dialect", "no"]],
)
def test_bad_usage_is_told(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err
