"""torch's own operator samples: `meta` gives what torch gives, results, gradients and tangents.

One test per entry of torch's database, with the first few samples of each, and one with all of
them. Both are slow. What `meta` refuses is in a list.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import meta
from meta.frontend.aten.registry import aten
from tests.frontend.listed import by_entry, check_listed, check_names
from tests.frontend.shared_lists import LACKED
from tools.torch_samples import functions, report
from tools.torch_samples.__main__ import main
from tools.torch_samples.adapters import BY_HAND
from tools.torch_samples.ambiguous import AMBIGUOUS, compare_draws
from tools.torch_samples.compare import TOLERANCE, compare
from tools.torch_samples.entries import ENTRIES
from tools.torch_samples.functions import run
from tools.torch_samples.outside import ONLY_TORCH, Declined, Outside, outside_if
from tools.torch_samples.run import Outcome

FEW = 3
OVERLOADS = ["overloads", "--exact", "add", "--samples", "3", "--dtype", "float32"]
RUN = sorted(ENTRIES.keys() - ONLY_TORCH.keys())
GRADIENT = "has no gradient|no gradient goes through"
REFUSED = by_entry(
    {w: LACKED[w] for w in ("there is no incomplete gamma function", "of Bessel's functions")},
    {
        "no scaled form of erfc": "special.erfcx special.log_ndtr",
        GRADIENT: "linalg.eig linalg.eigvals linalg.lu linalg.lu_factor linalg.lu_factor_ex lu",
    },
)
"""What `meta` lacks of the entries that are run: gaps."""


def check(outcome: Outcome) -> None:
    assert not outcome.failures, "\n".join(outcome.failures)


@pytest.mark.slow
@pytest.mark.parametrize("key", RUN)
def test_the_first_samples_agree(key: str) -> None:
    with meta.dialect.prefer("torch"):
        outcome = run(key, limit=FEW)
    check(outcome)
    assert outcome.ran or outcome.declined, f"nothing ran: {outcome.outside}"
    check_listed(key, list(outcome.declined), REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("key", RUN)
def test_all_samples_agree(key: str) -> None:
    with meta.dialect.prefer("torch"):
        outcome = run(key)
    check(outcome)


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the lists are of the entries of torch 2.13"
)
@pytest.mark.parametrize("listed", [REFUSED, BY_HAND, AMBIGUOUS], ids=["refused", "hand", "many"])
def test_the_lists_are_of_entries(listed: Any) -> None:
    check_names(listed, RUN)


def test_a_wrong_adapter_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BY_HAND, "sin", meta.cos)
    outcome = run("sin", limit=1)
    assert len(outcome.failures) == 5 and not outcome.passed
    assert "sample 0 of sin in float32: AssertionError: result" in outcome.failures[0]


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_twice_the_gradient(input: meta.ndarray) -> meta.ndarray:
        y = meta.sin(input)
        return 2 * y - y.detach() if y.requires_grad else y

    monkeypatch.setitem(BY_HAND, "sin", of_twice_the_gradient)
    outcome = run("sin", limit=1)
    assert any("gradient of tensor 0" in f for f in outcome.failures)


def test_a_wrong_tangent_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def backwards(f: Any, primals: Any, tangents: Any) -> Any:
        return meta.grad.jvp(f, primals, [None if t is None else -t for t in tangents])

    monkeypatch.setattr(functions, "jvp", backwards)
    outcome = run("sin", limit=1)
    assert len(outcome.failures) == 1 and "tangent of result 0" in outcome.failures[0]


@pytest.mark.parametrize("key", ["logcumsumexp", "nn.functional.max_unpool1d", "triangular_solve"])
def test_tangents_where_torch_s_are_not_derivatives(key: str) -> None:
    outcome = run(key, (torch.float64,), limit=FEW)
    check(outcome)
    assert outcome.tangents == FEW


def test_a_gradient_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BY_HAND, "sin", lambda input: meta.sin(input).detach())
    outcome = run("sin", limit=1)
    assert outcome.declined.keys() == {"its result has no gradient"} and not outcome.passed


def test_what_is_declined_is_counted_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(input: meta.ndarray) -> meta.ndarray:
        raise Declined("for a reason")

    monkeypatch.setitem(BY_HAND, "sin", refuse)
    outcome = run("sin")
    assert outcome.declined.keys() == {"for a reason"} and not outcome.passed
    total = report.Total(["sin", "to_sparse"], {"to_sparse": "sparse"}, [outcome])
    assert total.counts()["refusing"] == 1 and total.counts()["failing"] == 0
    assert "sin: refused" in report.text(total, declined=True)


def test_a_sample_that_only_torch_has_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_bool(input: meta.ndarray) -> meta.ndarray:
        outside_if(input.dtype == "bool", Outside.DTYPE)
        return meta.sin(input)

    monkeypatch.setitem(BY_HAND, "sin", refuse_bool)
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


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--exact", "sin", "to_sparse", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["entries"] == 2 and found["counts"]["passing"] == 1
    assert list(found["outside"]) == ["to_sparse"]
    assert found["outcomes"][0]["gradients"] == 3 and found["outcomes"][0]["tangents"]


@pytest.mark.slow
def test_several_processes_find_what_one_finds(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for jobs in ("1", "2"):
        assert main(["--filter", "sin", "--jobs", jobs, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_an_overload_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OVERLOADS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["outcomes"]
    record = next(r for r in found if r["name"] == "add.Tensor")
    assert record["ran"] >= 3 and not record["failures"] and record["entries"] == ["add"]


def test_a_wrong_converter_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(aten["add.Tensor"], function=lambda x, y, *, alpha: meta.subtract(x, y))
    monkeypatch.setitem(aten._entries, "add.Tensor", wrong)
    assert main(OVERLOADS) == 1
    out = capsys.readouterr().out
    assert "add.Tensor: 3 of 3 fail" in out and "sample 0 of add in float32" in out


@pytest.mark.parametrize(
    "argv",
    [
        ["overloads", "--exact", "no_such_entry"],
        ["--exact", "sin", "--page", "page.md"],
        ["no_such_comparison"],
        ["--exact", "no_such_entry"],
        ["--exact", "to_sparse"],
        ["--filter", "no_such"],
        ["--jobs", "0"],
        ["--dialect", "no"],
    ],
)
def test_bad_usage_is_told(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err
