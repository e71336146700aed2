"""Random models, run in every way; `python -m tools.fuzz_models` runs as many as wanted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.dialect.core import Dialect
from tests.op.records import CASES
from tools.fuzz_models import run
from tools.fuzz_models.__main__ import main
from tools.fuzz_models.campaign import cases_of, tensors_alive, write_failure
from tools.fuzz_models.draw import Style, generate
from tools.fuzz_models.evaluate import Noise, evaluate
from tools.fuzz_models.face import Case
from tools.fuzz_models.minimise import minimise
from tools.fuzz_models.models import run_case, style_of
from tools.fuzz_models.program import Input, Program, Ref, Step, all_steps, source
from tools.fuzz_models.records import record_of, records
from tools.fuzz_models.run import DIALECTS as PREFERRED
from tools.fuzz_models.run import EXECUTORS, Way, check

TORCH = [Way(e, "torch") for e in EXECUTORS]
ALL = [Way(e, d) for d in PREFERRED for e in EXECUTORS]


def check_cases(cases: list[Case]) -> None:
    """Fail with a script for each case that fails."""
    found = [r for r in (run_case(c, 20.0) for c in cases) if r.kind]
    assert not found, "\n\n".join(f"seed {r.case.seed}\n{r.script}" for r in found)


@pytest.mark.parametrize("part", range(2))
@pytest.mark.long
def test_models(part: int) -> None:
    """Small ones: most on torch's kernels, which need no compiler."""
    check_cases(cases_of(44, 10_000 + 44 * part, TORCH, quick=True))
    check_cases(cases_of(6, 20_000 + 6 * part, ALL[part::2], quick=True))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(24))
@pytest.mark.parametrize("dialect", PREFERRED)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_many_models(executor: str, dialect: str, part: int) -> None:
    """2,000 for each executor, all dialects together."""
    check_cases(cases_of(28, 1_000_000 + 28 * part, [Way(executor, dialect)]))


def test_every_operator_is_drawn() -> None:
    """All that have a record with samples and compute what follows from their arguments."""
    drawn = {case.op for case in CASES if case.samples and "cuda" in case.devices}
    left_out = {n for n in OPERATORS if OPERATORS[n].random or OPERATORS[n].collective}
    assert set(records()) == drawn - left_out
    assert len(records()) > 420


def test_programs_use_the_operators() -> None:
    used = Counter(
        step.op for seed in range(90) for step in all_steps(generate(seed, Style()).steps)
    )
    assert len([name for name in used if name in records()]) >= 180
    assert {"cond", "while_loop", "scan"} <= set(used)
    assert {"reshape", "expand_dims", "squeeze", "batch_flatten"} & set(used)  # views
    assert any(record_of(name).writes for name in used if name in records())


@pytest.mark.parametrize(
    ("names", "moves", "degree"),
    [
        ("relu maximum reshape take concat sort astype zeros", True, None),
        ("add subtract sum cumsum bias_add", False, 1),
        ("multiply square matmul conv2d", False, 2),
        ("exp tanh divide mean softmax layer_norm lerp mse_loss pow", False, 0),
    ],
)
def test_how_operators_round_is_found_by_trying(
    names: str, moves: bool, degree: int | None
) -> None:
    for name in names.split():
        record = record_of(name)
        assert record.moves == moves, name
        assert degree is None or record.degree == degree, name


def test_a_seed_is_a_program() -> None:
    style = Style()
    texts = [source(generate(seed, style)) for seed in range(12)]
    assert texts == [source(generate(seed, style)) for seed in range(12)]
    assert len(set(texts)) == 12
    program = "[print(source(generate(seed, Style()))) for seed in range(12)]"
    imports = "from tools.fuzz_models.draw import *; from tools.fuzz_models.program import source"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    command = [sys.executable, "-c", f"{imports}; {program}"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "".join(f"{text}\n" for text in texts)


def test_makers_are_told_the_device() -> None:
    program = Program({}, (Step("ones", ((2,),), {"dtype": "int32"}, (0,)),), (0,))
    assert source(program).splitlines()[1] == "    x0 = op.ones((2,), dtype='int32')"
    assert "op.ones((2,), dtype='int32', device='cuda')" in source(program, "cuda")


def test_an_exact_value_is_not_disturbed() -> None:
    x = Input("float16", (3,), torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
    steps = (
        Step("multiply", (Ref(0), Ref(0)), results=(1,)),
        Step("sum", (Ref(1),), results=(2,)),
        Step("exp", (Ref(2),), results=(3,)),
    )
    program = Program({0: x}, steps, (2, 3))
    quiet = evaluate(program)
    assert quiet.exact == [True, True, False]
    noisy = evaluate(program, Noise(1, 4.0), quiet.exact)
    assert noisy.values[2].tensor.item() == 5.25
    assert noisy.values[3].tensor.item() != quiet.values[3].tensor.item()


def failing(kernel_of: str, way: Way) -> Case:
    """Return a case that uses an operator and fails."""
    for seed in range(200):
        case = Case(seed, way, quick=True, only=(kernel_of, "add", "exp", "matmul", "sum"))
        program = generate(seed, style_of(case))
        if any(s.op == kernel_of for s in program.steps) and check(program, way) is not None:
            return case
    raise AssertionError(f"nothing with {kernel_of} fails")


@pytest.mark.parametrize("executor", ["eager", "interpreter", "vm0", "vm3"])
def test_a_wrong_kernel_is_found(acme: Dialect, executor: str, tmp_path: Path) -> None:
    """It is wrong for more than three elements, and reduced to it."""

    @acme.kernel(meta.op.permute_dims)
    def permute_dims(x, axes):  # type: ignore[no-untyped-def]
        y = x.permute(tuple(axes or reversed(range(x.ndim)))).reshape(-1).clone()
        if y.numel() > 3:
            y[3] = y[0]
        return y.reshape([x.shape[a] for a in axes or reversed(range(x.ndim))])

    way = Way(executor)
    case = failing("permute_dims", way)
    record = run_case(case, seconds=30)
    assert record.kind == "wrong value"
    assert record.steps == 1
    assert "op.permute_dims(" in record.script
    path = write_failure(record, tmp_path)
    compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("executor", ["tape", "traced_gradient"])
def test_a_wrong_gradient_is_found(acme: Dialect, executor: str) -> None:
    """By a few hundred units in the last place; and 1 - y * y of a y near 1 is none."""

    @acme.kernel(meta.op.tanh_dx)
    def tanh_dx(x, y, dy):  # type: ignore[no-untyped-def]
        return dy * (1 - y * y) * scale

    steps = (
        Step("exp", (Ref(0),), results=(1,)),
        Step("tanh", (Ref(1),), results=(2,)),
    )
    program = Program({0: floats(-2.0, 0.5, 4.0)}, steps, (2,))
    scale = 1.0
    assert check(program, Way(executor)) is None
    scale = 1.0001
    found = check(program, Way(executor))
    assert found is not None
    assert found.text.startswith("the gradient of x0: 2 of 3 elements")


def floats(*values: float) -> Input:
    return Input("float32", (len(values),), torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("executor", ["tape", "traced_gradient"])
@pytest.mark.parametrize("op", ["softmax", "layer_norm", "log_softmax"])
def test_gradients_that_cancel(op: str, executor: str) -> None:
    """What is left is rounding, of which a bound is computed, too."""
    for values in ((8.0, 0.0), (1.0, 1.0), (3.0,)):
        along = {"axis": -1}
        steps = (Step(op, (Ref(0),), along, (1,)), Step("sum", (Ref(1),), results=(2,)))
        for results in ((1,), (2,)):
            program = Program({0: floats(*values)}, steps[: results[0]], results)
            assert check(program, Way(executor, "tvm")) is None


@pytest.mark.parametrize("executor", ["tape", "traced_gradient"])
def test_nothing_to_differentiate(executor: str) -> None:
    """That the pass refuses it is right; that it refuses what depends on an input is not."""
    x = Input("int32", (2,), torch.tensor([1, 2]))
    steps = (Step("astype", (Ref(0), "float32"), results=(1,)),)
    assert check(Program({0: x}, steps, (1,)), Way(executor)) is None


def test_what_is_raised_is_told_apart(acme: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    @acme.kernel(meta.op.tanh)
    def tanh(x):  # type: ignore[no-untyped-def]
        raise meta.MetaError("not today") if x.ndim == 1 else KeyError("tanh")

    steps = (Step("tanh", (Ref(0),), results=(1,)),)

    def signature(*shape: int) -> tuple[str, str]:
        x = Input("float32", shape, torch.ones(2, dtype=torch.float64))
        found = check(Program({0: x}, steps, (1,)), Way("eager"))
        assert found is not None
        return found.signature

    assert signature(2) == ("refused", "MetaError")
    assert signature(1, 2) == ("refused", "BackendError")

    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(run, "runner", broken)
    assert signature(2) == ("raw", "KeyError")


@pytest.mark.parametrize("first", [1, 4])
def test_a_kernel_that_writes_its_argument_is_found(acme: Dialect, first: int) -> None:
    """By meta, which looks at the first run of a kernel of others, or by the tool, in a later one.

    first: the run that is the first to write.
    """
    runs = 0

    @acme.kernel(meta.op.relu)
    def relu(x):  # type: ignore[no-untyped-def]
        nonlocal runs
        runs += 1
        return x.clamp_(min=0).clone() if runs >= first else x.clamp(min=0)

    x = Input("float32", (2,), torch.tensor([-1.0, 1.0], dtype=torch.float64))
    steps = tuple(Step("relu", (Ref(0),), results=(i,)) for i in range(1, 7))
    found = check(Program({0: x}, steps, (1,)), Way("eager"))
    assert found is not None
    if first == 1:
        assert found.signature == ("refused", "BackendError")
        assert "breaks its promise" in found.text and "argument 0 was written" in found.text
    else:
        assert found.text.startswith("argument x0 afterwards")


def test_minimise() -> None:
    """Whatever the failure depends on stays, and nothing else."""
    style = Style(least=20, most=24, writes=False)
    seed = next(s for s in range(100) if _ops(generate(s, style)).count("softmax") == 1)
    program = generate(seed, style)
    small = minimise(program, lambda p: "softmax" in _ops(p))
    assert _ops(small) == ["softmax"]
    assert len(small.inputs) == 1
    (x,) = small.inputs.values()
    assert x.values.numel() <= 1
    assert not x.values.any()


@pytest.mark.long
def test_a_failure_inside_of_control_flow_is_left_alone() -> None:
    style = Style(least=20, most=24, writes=False)
    found = (generate(s, style) for s in range(2000))
    program = next(p for p in found if "softmax" in {s.op for t in p.steps for b in t.blocks
                                                     for s in b.steps})  # fmt: skip
    assert _ops(minimise(program, lambda p: "softmax" in _ops(p))) == ["softmax"]


def _ops(program: Program) -> list[str]:
    return [s.op for s in all_steps(program.steps)]


@pytest.mark.long
def test_no_memory_is_kept() -> None:
    ways = [Way("eager", "torch"), Way("interpreter", "torch"), Way("vm3", "torch")]
    alive = []
    for start in (0, 30, 60):
        check_cases(cases_of(30, start, ways, quick=True))
        alive.append(tensors_alive())
    assert alive[2] <= alive[1] + 5


@pytest.mark.long
def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--quick", "--face", "models", "--dialect", "torch", "--executor", "eager,vm2"]
    assert main([*arguments, "--cases", "4", "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cases"], found["kinds"], found["failures"]) == (4, {"right": 4}, [])
    assert main([*arguments, "--replay", "3"]) == 0
    assert "def model(" in capsys.readouterr().out
    assert main(["--executor", "nobody"]) == 2
    assert main(["--face", "nobody"]) == 2
