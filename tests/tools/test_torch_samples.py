"""torch's own operator samples: `meta` gives what torch gives, results and gradients.

One test per entry of torch's database that has an adapter, with the first few samples of each, and
one with all of them. Both are slow. That no sample fails is tested; `docs/testing.md` counts the
entries of which `meta` refuses samples.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import meta
from tools.torch_samples import report
from tools.torch_samples.__main__ import main
from tools.torch_samples.check import Calls
from tools.torch_samples.compare import TOLERANCE, compare
from tools.torch_samples.decline import Declined, Outside, outside_if
from tools.torch_samples.draws import compare_draws
from tools.torch_samples.entries import ENTRIES
from tools.torch_samples.families import ADAPTERS
from tools.torch_samples.outside import OUTSIDE
from tools.torch_samples.run import Outcome, run

FEW = 3
VERSION: Any = torch.__version__
NEW_IN = {
    (2, 13): {
        "bmm|triton_optimized",
        "native_group_norm",
        "nn.functional.linear_cross_entropy",
        "nn.functional.linear_cross_entropy|chunked",
        "nn.functional.linear_cross_entropy|chunked_none",
    },
    (2, 14): {
        "linalg.matrix_sqrth",
        "linalg.polar",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    },
}
"""Entries by the first release of torch that has them, of those that not all have."""
GONE_FROM = {(2, 14): {"cholesky", "qr"}}
"""Entries by the first release of torch that has them no more."""
ADAPTED = sorted(ADAPTERS.keys() & ENTRIES.keys())


def check(outcome: Outcome) -> None:
    assert not outcome.failures, "\n".join(outcome.failures)


@pytest.mark.slow
@pytest.mark.parametrize("key", ADAPTED)
def test_the_first_samples_agree(key: str) -> None:
    with meta.dialect.prefer("torch"):
        outcome = run(key, limit=FEW)
    check(outcome)
    assert outcome.ran or outcome.declined, f"nothing ran: {outcome.outside}"


@pytest.mark.slow
@pytest.mark.parametrize("key", ADAPTED)
def test_all_samples_agree(key: str) -> None:
    with meta.dialect.prefer("torch"):
        outcome = run(key)
    check(outcome)


def test_every_entry_has_an_adapter_or_a_reason() -> None:
    assert not ADAPTERS.keys() & OUTSIDE.keys()
    lacking = [names for version, names in NEW_IN.items() if version > VERSION]
    lacking += [names for version, names in GONE_FROM.items() if version <= VERSION]
    assert (ADAPTERS.keys() | OUTSIDE.keys()) - set().union(*lacking) == ENTRIES.keys()


def test_a_wrong_adapter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "sin", meta.cos)
    outcome = run("sin", limit=1)
    assert len(outcome.failures) == 5 and not outcome.passed
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
    assert outcome.declined.keys() == {"for a reason"} and not outcome.passed
    total = report.Total(["sin", "to_sparse", "no adapter"], [outcome])
    assert total.uncovered == ["no adapter"] and list(total.outside) == ["to_sparse"]
    assert total.counts()["refusing samples"] == 1 and total.counts()["failing"] == 0
    assert "sin: refused" in report.text(total, declined=True)


def test_a_sample_that_only_torch_has_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_bool(input: meta.ndarray) -> meta.ndarray:
        outside_if(input.dtype == "bool", Outside.DTYPE)
        return meta.sin(input)

    monkeypatch.setitem(ADAPTERS, "sin", refuse_bool)
    outcome = run("sin")
    assert outcome.passed and outcome.outside.keys() == {Outside.DTYPE.value}


def test_bfloat16_is_compared_with_what_torch_computes_in_float64() -> None:
    wide = torch.linspace(1, 2, 9, dtype=torch.float64)
    theirs = (wide * 1.06).bfloat16()
    compare(wide.bfloat16(), theirs, TOLERANCE, "result", lambda: wide)
    for true in (None, wide * 1.06):
        with pytest.raises(AssertionError, match="result: Tensor-likes are not close"):
            compare(wide.bfloat16(), theirs, TOLERANCE, "result", lambda true=true: true)


def test_random_numbers_of_another_distribution_are_found() -> None:
    def normal(scale: float) -> torch.Tensor:
        return torch.randn(500) * scale

    compare_draws(lambda: normal(1.0), lambda: normal(1.0), "result", 1)
    with pytest.raises(AssertionError, match="other distributions"):
        compare_draws(lambda: normal(3.0), lambda: normal(1.0), "result", 1)
    with pytest.raises(AssertionError, match="expected, found"):
        compare_draws(lambda: normal(1.0).double(), lambda: normal(1.0), "result", 1)


def test_calls_of_operators_are_counted() -> None:
    calls = Calls()
    with calls.counted():
        meta.array([1.0]) + meta.exp(meta.array([1.0]))
    meta.exp(meta.array([1.0]))
    assert calls.number == 2


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--exact", "sin", "to_sparse", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["entries"] == 2 and found["counts"]["passing"] == 1
    assert list(found["outside"]) == ["to_sparse"] and found["uncovered"] == []
    assert found["outcomes"][0]["gradients"] == 3


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
