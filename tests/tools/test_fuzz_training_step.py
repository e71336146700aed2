"""Random trainings by training_step; `python -m tools.fuzz_models` runs any number."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tools.fuzz_models.campaign import cases_of
from tools.fuzz_models.torch_compile.noise import CompactGradients
from tools.fuzz_models.training_step import loop
from tools.fuzz_models.training_step.check import Way, check
from tools.fuzz_models.training_step.draw import EVENTS, generate
from tools.fuzz_models.training_step.face import run_case, script
from tools.fuzz_models.training_step.program import Program, Round, source
from tools.fuzz_models.training_step.smaller import minimise

SMALL = Program(
    "rows",
    ("nn.Linear(8, 4)", "nn.Tanh()", "nn.Linear(4, 11)"),
    "functional.cross_entropy(y, t)",
    "result",
    "float32",
    False,
    "torch.optim.AdamW(p, 0.01)",
    "all",
    (("clip_norm", "0.1"),),
    (Round(3, 2), Round(2, 2, ("average",))),
)


@pytest.mark.parametrize("part", range(3))
@pytest.mark.long
def test_trainings(part: int) -> None:
    cases = cases_of(4, 30_000 + 4 * part, [Way()], quick=True, face="training_step")
    found = [r for r in (run_case(c, 20.0) for c in cases) if r.kind]
    assert not found, "\n\n".join(f"seed {r.case.seed}\n{r.script}" for r in found)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(150))
def test_many_trainings(part: int) -> None:
    cases = cases_of(4, 1_000_000 + 4 * part, [Way()], face="training_step")
    found = [r for r in (run_case(c, 20.0) for c in cases) if r.kind]
    assert not found, "\n\n".join(f"seed {r.case.seed}\n{r.script}" for r in found)


def test_a_seed_is_a_training() -> None:
    texts = [source(generate(seed)) for seed in range(20)]
    assert texts == [source(generate(seed)) for seed in range(20)]
    assert len(set(texts)) == 20


def test_what_trainings_are_made_of() -> None:
    programs = [generate(seed) for seed in range(150)]
    assert {p.kind for p in programs} == {"images", "tokens", "tied", "rows", "table"}
    assert {e for p in programs for e in p.events} == {*EVENTS, "fresh"}
    options = Counter(name for p in programs for name, _ in p.options)
    names = {"clip_norm", "clip_value", "accumulate", "autocast", "scaler"}
    assert options.keys() == names and min(options.values()) > 5
    optimizers = {p.optimizer.split("(")[0].split(".")[-1] for p in programs}
    assert optimizers == {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adafactor", "Muon"}
    text = " ".join(t for p in programs for t in p.layers)
    layers = ("Conv2d", "BatchNorm2d", "Again", "Lora", "LSTM", "Attention", "Running", "_norm(")
    assert all(name in text for name in layers)


def wrong_step(change: Any) -> Any:
    """Return what makes PyTorch's step, but for a fault."""

    def make(model: nn.Module, optimizer: Any, loss: Any, options: Any, mode: Any = None) -> Any:
        step = loop.step_of_torch(model, optimizer, loss, options)

        def run(inputs: Any, target: Tensor) -> Tensor:
            found = step(inputs, target)
            with torch.no_grad():
                return change(model, optimizer, found)

        return run

    return make


def other_state(model: nn.Module, optimizer: Any, found: Tensor) -> Tensor:
    for own in optimizer.state.values():
        own["exp_avg"].mul_(1.001)
    return found


def other_memory(model: nn.Module, optimizer: Any, found: Tensor) -> Tensor:
    for p in model.parameters():
        p.data = p.data.clone()
    return found


def raising(model: nn.Module, optimizer: Any, found: Tensor) -> Tensor:
    raise KeyError("nothing")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda model, optimizer, found: found, None),
        (lambda model, optimizer, found: found * 1.0001, "wrong value"),
        (lambda model, optimizer, found: found.double(), "wrong type"),
        (other_state, "wrong value"),
        (other_memory, "wrong value"),
        (raising, "raw"),
    ],
)
def test_what_is_wrong_is_told_apart(
    change: Any, kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "step_of_meta", wrong_step(change))
    failure = check(SMALL)
    assert (failure and failure.kind) == kind


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.InstanceNorm2d])
def test_gradients_of_norms_whatever_their_layout(norm: Any) -> None:
    x = torch.randn(1, 4, 8, 8, dtype=torch.float64, requires_grad=True)
    layer = norm(4, affine=True).double()

    def loss(x: Tensor) -> Tensor:
        y = layer(x).flatten(2).mT.cumsum(1)
        return y.square().sum()

    with CompactGradients():
        assert torch.autograd.gradcheck(loss, (x,))


def test_a_failing_training_is_made_smaller() -> None:
    program = replace(SMALL, optimizer="torch.optim.SGD(p, 0.1)")
    least = minimise(program, lambda p: "nn.Tanh()" in p.layers, 20.0)
    assert least.layers == ("nn.Linear(8, 4)", "nn.Tanh()") or len(least.layers) == 3
    assert len(least.rounds) == 1 and not least.options and not least.events


def test_a_script_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    failure = check(SMALL)
    assert failure is None
    from tools.fuzz_models.face import Failure

    text = script(SMALL, "cpu", Failure("wrong value", "", "what"))
    exec(compile(text, "<script>", "exec"), {})
    shown = capsys.readouterr().out
    assert "whether the tensors are where they were True" in shown
    assert "the loss" not in shown
