"""Random PyTorch programs under torch.compile; `python -m tools.fuzz_models` runs any number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from tools.fuzz_models.__main__ import main
from tools.fuzz_models.campaign import cases_of
from tools.fuzz_models.face import Case
from tools.fuzz_models.torch_compile import check as checking
from tools.fuzz_models.torch_compile import draw as drawing
from tools.fuzz_models.torch_compile.check import Way, check, differs
from tools.fuzz_models.torch_compile.draw import generate
from tools.fuzz_models.torch_compile.face import run_case
from tools.fuzz_models.torch_compile.observe import observe
from tools.fuzz_models.torch_compile.overloads import calls
from tools.fuzz_models.torch_compile.program import (
    Call,
    Given,
    Program,
    Step,
    namespace,
    source,
)
from tools.fuzz_models.torch_compile.script import script
from tools.fuzz_models.torch_compile.smaller import minimise

CALLS = (Call(4, 3, 1, 0.5), Call(6, 3, 2, 0.5), Call(1, 2, 1, 0.5), Call(4, 3, 1, 0.5))
MATRIX = Given("float32", ("n", 4))
Backend = Callable[..., Any]


def check_cases(cases: list[Case]) -> None:
    """Fail with a script for each case that fails."""
    found = [r for r in (run_case(c, 20.0) for c in cases) if r.kind]
    assert not found, "\n\n".join(f"seed {r.case.seed}\n{r.script}" for r in found)


@pytest.mark.parametrize("part", range(5))
@pytest.mark.long
def test_programs(part: int) -> None:
    check_cases(cases_of(5, 30_000 + 5 * part, [Way()], face="torch_compile"))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(150))
def test_many_programs(part: int) -> None:
    check_cases(cases_of(20, 1_000_000 + 20 * part, [Way()], face="torch_compile"))


def test_a_seed_is_a_program() -> None:
    texts = [source(generate(seed)) for seed in range(20)]
    assert texts == [source(generate(seed)) for seed in range(20)]
    assert len(set(texts)) == 20


def test_what_programs_are_made_of() -> None:
    """Sizes repeat and are 0 and 1, numbers change, arguments share memory and are written."""
    programs = [generate(seed) for seed in range(80)]
    assert all(len(p.calls) >= 4 for p in programs)
    extents = [{c.n for c in p.calls} for p in programs]
    assert sum(0 in e for e in extents) > 15
    assert sum(1 in e for e in extents) > 15
    assert sum(len(e) > 2 for e in extents) > 50
    assert sum(p.train for p in programs) in range(20, 50)
    assert {p.dynamic for p in programs} == {None, True, False}
    assert sum(any(not s.results for s in p.steps) for p in programs) > 30
    assert sum(any(x.of for x in p.inputs.values()) for p in programs) > 5
    assert sum("k" in p.numbers for p in programs) > 20
    layouts = {x.layout for p in programs for x in p.inputs.values()}
    assert {"plain", "transposed", "sliced", "expanded", "channels_last"} <= layouts


def test_lists_of_tensors_have_as_many_as_pytorch_reads() -> None:
    """It reads two states of an LSTM's cell, of which there may be none, and dies."""
    (cell,) = (c for c in calls() if "aten.lstm_cell" in c)
    assert "({0}, [<same>, <same>], " in cell


def test_polynomials_are_not_called_with_nan() -> None:
    """Of which PyTorch returns memory that it has not written, if the degree is 2 or more."""
    found = [c for c in calls() if "_polynomial_" in c]
    assert len(found) > 20 and all(".nan_to_num()" in c for c in found)


def test_of_equal_elements_it_does_not_matter_which() -> None:
    """As PyTorch says of none which one `topk` means: values without a gradient are compared."""
    found = [c for c in calls() if re.search(r"aten\.(topk|sort|mode|kthvalue|median)\.", c)]
    assert "r0, *_ = torch.ops.aten.topk.default({0}.detach(), <k>)" in found
    assert all("r1" not in c and "{0}.detach()" in c for c in found)


def test_overloads_that_return_their_operand_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numbers `dequantize` does, and its schema has no alias."""
    rows = [drawing.Row("F", 0, 5, 1.0, "torch.ops.aten.dequantize.self({0})", False)]
    monkeypatch.setattr(drawing, "_table", lambda block: rows)
    monkeypatch.setattr(drawing, "WEIGHTS", {"overloads": 1.0})
    draw = drawing.Draw(0, quick=True)
    draw.argument()
    assert draw.grow(1, 10) == 0
    rows[:] = [drawing.Row("A", 0, 5, 1.0, "torch.ops.aten.clone.default({0})", False)]
    assert draw.grow(1, 10) == 1


def changed(change: Callable[[fx.GraphModule, list[Any]], list[Any]]) -> Backend:
    """Return a backend that gives something else than the graph."""

    def backend(graph: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return lambda *given: change(graph, list(graph(*given)))

    return backend


def doubled_sines(graph: fx.GraphModule, results: list[Any]) -> list[Any]:
    if any(n.target is torch.sin for n in graph.graph.nodes):
        return [2 * r for r in results]
    return results


def copies(graph: fx.GraphModule, results: list[Any]) -> list[Any]:
    return [r.clone() if isinstance(r, torch.Tensor) else r for r in results]


def nothing(graph: fx.GraphModule, results: list[Any]) -> list[Any]:
    raise KeyError("nothing")


def program(*steps: Step, results: tuple[int, ...], **fields: Any) -> Program:
    return Program({0: MATRIX}, steps, results, CALLS, **fields)


@pytest.mark.parametrize(
    ("change", "steps", "results", "kind"),
    [
        (doubled_sines, [Step("r0 = torch.sin({0})", (0,), (1,))], (1,), "wrong value"),
        (copies, [Step("r0, r1 = ({0} + 1).chunk(2, 1)", (0,), (1, 2))], (1, 2), "wrong strides"),
        (copies, [Step("r0 = {0}[1:]", (0,), (1,))], (1,), "wrong alias"),
        (copies, [Step("r0 = {0}.mT.exp()", (0,), (1,))], (1,), None),
        (nothing, [Step("r0 = {0}.exp()", (0,), (1,))], (1,), "raw"),
    ],
)
def test_what_is_wrong_is_told_apart(
    change: Any, steps: list[Step], results: tuple[int, ...], kind: str | None
) -> None:
    found = differs(program(*steps, results=results), changed(change))
    assert (found and found.kind) == kind


def test_a_gradient_and_an_argument_that_is_written() -> None:
    """Both are looked at: the program is right, and differs from one that does less."""
    steps = (
        Step("r0 = {0} + 1", (0,), (1,)),
        Step("{0}[1:] += k", (1,)),
        Step("{0}.mul_(2)", (0,)),
    )
    own = {0: Given("float32", ("n", 4), grad="made")}
    whole = Program(own, steps, (1,), CALLS, train=True)
    assert differs(whole, "aot_eager") is None
    names = namespace(whole)
    seen = {s.what: s.value for s in observe(whole, CALLS[0], names).seen}
    assert seen["gradient 0"].abs().sum() > 0
    assert torch.equal(seen["argument v0 afterwards"][0, 0], torch.tensor(-4.0))


def test_rounding_is_no_failure() -> None:
    """Of a sum that cancels no digit is left, of a comparison nothing."""
    steps = (
        Step("r0 = {0}.exp().sum(0) - {0}.exp().sum(0) * (1 + 1e-7)", (0,), (1,)),
        Step("r0 = {0} > 0", (1,), (2,)),
    )

    def other_order(graph: fx.GraphModule, results: list[Any]) -> list[Any]:
        total = results[0] + 1e-6
        return [total, total > 0, *results[2:]]

    assert differs(program(*steps, results=(1, 2)), changed(other_order)) is None


def test_what_pytorch_does_wrong_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = program(Step("r0 = torch.sin({0})", (0,), (1,)), results=(1,))
    monkeypatch.setattr(checking, "OWN", changed(doubled_sines))
    assert check(wrong) is not None
    monkeypatch.setattr(checking, "OTHER", changed(doubled_sines))
    assert check(wrong) is None


def test_minimise_and_script(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the failure depends on stays, and nothing else; the script shows it."""
    large = program(
        Step("r0 = {0}[1:] * k", (0,), (1,)),
        Step("r0 = torch.sin({0})", (1,), (2,)),
        Step("{0}.add_(1)", (0,)),
        Step("r0 = {0} + {0}", (2,), (3,)),
        results=(1, 3),
        dynamic=True,
    )
    backend = changed(doubled_sines)
    small = minimise(large, lambda p: differs(p, backend) is not None, 60.0)
    assert [s.text for s in small.steps] == ["r0 = torch.sin({0})"]
    assert (len(small.calls), small.dynamic, small.numbers) == (1, None, [])
    failure = differs(small, backend)
    assert failure is not None
    text = script(small, "cpu", failure)
    exec(compile(text.replace('backend="meta"', 'backend="eager"'), "<script>", "exec"), {})
    shown = capsys.readouterr().out
    assert "eager" in shown
    assert "meta" in shown


@pytest.mark.long
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--face", "torch_compile", "--quick", "--seed", "3"]
    assert main([*arguments, "--cases", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kinds"] == {"right": 2}
    assert main(["--face", "torch_compile", "--replay", "3"]) == 0
    assert "def f(" in capsys.readouterr().out
