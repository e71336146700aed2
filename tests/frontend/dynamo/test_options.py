"""Options, calls back into PyTorch, reports and errors of torch.compile(backend="meta")."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.base import config
from meta.base.errors import ArgumentError
from meta.frontend.dynamo.compiler import record_compiled_graphs
from meta.frontend.dynamo.options import Options, read_options
from tests.frontend.dynamo.models import Block, mlp

ROOT = Path(__file__).parents[3]
FAILED = torch._dynamo.exc.BackendCompilerFailed


@torch.library.custom_op("meta_tests::shifted", mutates_args=())
def shifted(x: torch.Tensor, by: float) -> torch.Tensor:
    return x + by


@shifted.register_fake
def _(x, by):
    return torch.empty_like(x)


@torch.library.custom_op("meta_tests::parted", mutates_args=())
def parted(xs: list[torch.Tensor], at: int) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.cat(xs)
    return whole[:at].clone(), whole[at:].clone()


@parted.register_fake
def _(xs, at):
    n = sum(x.shape[0] for x in xs)
    return xs[0].new_empty(at), xs[0].new_empty(n - at)


def test_an_operator_without_converter_is_called_back() -> None:
    def f(x):
        a, b = parted([shifted(x.sin(), 2.0), x], 3)
        return a * 2, b.cos()

    x = torch.randn(4)
    with record_compiled_graphs() as graphs:
        found = torch.compile(f, backend="meta", fullgraph=True)(x)
    torch.testing.assert_close(found, f(x))
    (graph,) = graphs
    assert graph.for_all is not None
    names = [c.operator for c in graph.for_all.calls_back]
    assert names.count("meta_tests.shifted") == names.count("meta_tests.parted") == 1


def test_all_that_is_not_converted_is_listed_at_once() -> None:
    def f(x):
        a, b = parted([shifted(x.sin(), 2.0), x], 3)
        return a * 2, b.cos()

    run = torch.compile(f, backend="meta", options={"fallback": "error"})
    with pytest.raises(FAILED, match="not supported") as caught:
        run(torch.randn(4))
    text = str(caught.value)
    assert "meta_tests.shifted" in text
    assert "meta_tests.parted" in text
    assert "test_options.py" in text


NO_PROGRAMS = {
    "a dtype that there is not": (lambda x: x.chalf().real.float() * 2, "do not have the dtype"),
    "memory around a tensor": (
        lambda x: torch.as_strided(x[2:], (2, 2), (2, 1), 1) * 2, "a part of a tensor's memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_PROGRAMS)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_graph_that_is_no_program_runs_in_pytorch(name: str) -> None:
    f, why = NO_PROGRAMS[name]
    x = torch.randn(9, requires_grad=True)
    with record_compiled_graphs() as graphs:
        found = torch.compile(f, backend="meta", fullgraph=True)(x)
    torch.testing.assert_close(found, f(x))
    given = [torch.autograd.grad(y.sum(), x)[0] for y in (found, f(x))]
    torch.testing.assert_close(*given)
    assert any(why in c.why for g in graphs for p in g.programs() for c in p.calls_back)
    assert "calls back the whole graph: " in str(meta.explain_compile(f, x))
    torch._dynamo.reset()
    with pytest.raises(FAILED, match=r"not supported|may read what"):
        torch.compile(f, backend="meta", fullgraph=True, options={"fallback": "error"})(x)


def test_a_call_back_of_dynamic_sizes() -> None:
    run = torch.compile(
        lambda x: shifted(x * 2, 1.0) + x.shape[0], backend="meta", dynamic=True, fullgraph=True
    )
    for n in (3, 5):
        x = torch.randn(n)
        torch.testing.assert_close(run(x), x * 2 + 1 + n)


def test_functions_within_are_called_back() -> None:
    def f(x):
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,)) + 1

    run = torch.compile(f, backend="meta", fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(run(x), f(x))


def test_options_are_read() -> None:
    assert read_options(None, None) == Options()
    assert read_options("default", {"dispatch": "torch"}).dispatch == ("torch",)
    assert read_options("reduce-overhead", {}) == Options()
    assert read_options(None, {"memory_budget": 10, "cuda_graph": False}).memory_budget == 10


@pytest.mark.parametrize(
    ("mode", "options", "match"),
    [
        (None, {"falback": "torch"}, "no option 'falback'(.|\n)*fallback"),
        (None, {"fallback": "eager"}, "'fallback' is not this"),
        (None, {"dispatch": "tensorrt"}, "tensorrt"),
        (None, {"dispatch": 3}, "'dispatch' is not this"),
        (None, {"cuda_graph": "yes"}, "'cuda_graph' is not this"),
        (None, {"memory_budget": 1.5}, "'memory_budget' is not this"),
        ("max-speed", None, "means nothing to the backend(.|\n)*max-autotune"),
        (None, {"tune": -1.0}, "'tune' is not this"),
        (None, {"tune": "long"}, "'tune' is not this"),
        (None, {"freeze": 1}, "'freeze' is not this"),
    ],
)
def test_wrong_options_are_errors(mode: Any, options: Any, match: str) -> None:
    with pytest.raises(meta.MetaError, match=match):
        read_options(mode, options)


def test_kernels_are_measured(
    tmp_path: Path, measured_by: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def measure(subjects: Any, device: Any, how: str) -> list[Any]:
        asked.extend(type(subject).__name__ for subject in subjects)
        return [(place, []) for place in range(len(subjects))]

    measured_by(measure)
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("META_TUNE", "cached")
    x = torch.randn(3, 8)
    for how in ({"mode": "max-autotune"}, {"options": {"tune": 5}}):
        torch.compiler.reset()
        asked.clear()
        run = torch.compile(lambda x: x.softmax(-1) + 1.0, backend="meta", **how)
        torch.testing.assert_close(run(x), x.softmax(-1) + 1.0)
        assert asked
    assert read_options("max-autotune-no-cudagraphs", None).cuda_graph is False


def test_a_dialect_is_preferred() -> None:
    x = torch.randn(3, 8)
    for dialect in ("torch", "tvm"):
        torch._dynamo.reset()
        options = {"dispatch": dialect}
        with record_compiled_graphs() as graphs, torch.no_grad():
            torch.compile(mlp(), backend="meta", options=options)(x)
        program = graphs[0].for_all
        assert program is not None
        assert program.executable is not None
        used = {kernel.dialect for kernel in program.executable.code.kernels}
        assert used == {dialect}


def test_a_memory_budget_that_cannot_be_met() -> None:
    run = torch.compile(mlp(), backend="meta", options={"memory_budget": 1})
    with pytest.raises(ArgumentError, match="memory"), torch.no_grad():
        run(torch.randn(64, 8))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
def test_the_report() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.norm = Block(), nn.BatchNorm1d(5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(self.block(x))
            torch._dynamo.graph_break()
            return shifted(y.detach(), 1.0) * y

    model = Broken()
    x = torch.randn(2, 5, 16)
    state = torch.get_rng_state()
    report = meta.explain_compile(model, x)
    assert torch.equal(state, torch.get_rng_state())
    assert int(model.norm.num_batches_tracked) == 0
    assert next(model.parameters()).grad is None
    assert {g.role for g in report.graphs} == {"forward", "backward"}
    assert len(report.breaks) == 1
    assert [f.operator for f in report.calls_back].count("meta_tests.shifted") == 1
    text = str(report)
    assert "1 graph breaks" in text
    assert "calls back meta_tests.shifted: there is no converter" in text
    assert "test_options.py" in text


def test_an_error_names_the_users_line() -> None:
    @torch.library.custom_op("meta_tests::failing", mutates_args=())
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    @failing.register_fake
    def _(x):
        return torch.empty_like(x)

    run = torch.compile(lambda x: failing(x.sin()) + 1, backend="meta", fullgraph=True)
    with pytest.raises(meta.errors.BackendError, match=r"test_options\.py"):
        run(torch.ones(3))


def test_programs_are_kept_on_disk(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(0)
    model, x = Block(), torch.randn(2, 5, 16)
    kept = []
    with config.override(META_PROGRAM_CACHE=True):
        for _ in range(2):
            torch._dynamo.reset()
            with record_compiled_graphs() as graphs:
                torch.compile(model, backend="meta", fullgraph=True)(x).sum().backward()
            kept.append([not g.for_all.executable.history for g in graphs])
    assert kept == [[False, False], [True, True]]


PROGRAM = """
import json, torch, meta.frontend.dynamo
from meta.frontend.dynamo.compiler import record_compiled_graphs
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
with record_compiled_graphs() as graphs:
    y = torch.compile(model, backend="meta", fullgraph=True)(torch.ones(3, 8))
    y.sum().backward()
print(json.dumps([[not g.for_all.executable.history for g in graphs], y.sum().item()]))
"""


@pytest.mark.slow
def test_another_process_finds_them(tmp_path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ,
        "META_CACHE_DIR": str(tmp_path / "cache"),
        "META_PROGRAM_CACHE": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, str(tmp_path / "program.py")]
    answers = [
        json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
        for _ in range(2)
    ]
    assert answers[0][0] == [False, False]
    assert answers[1][0] == [True, True]
    assert answers[0][1] == answers[1][1]


def test_the_trace_has_the_program() -> None:
    seen = []
    from torch._logging import _internal

    class Handler(_internal.logging.Handler):
        def emit(self, record):
            artifact = getattr(record, "metadata", {}).get("artifact", {})
            if artifact.get("name") == "meta_program":
                seen.append(record.payload)

    handler = Handler()
    _internal.trace_log.addHandler(handler)
    try:
        torch.compile(lambda x: x.sin() + 1, backend="meta")(torch.ones(3))
    finally:
        _internal.trace_log.removeHandler(handler)
    assert len(seen) == 1
    assert "func @main" in seen[0]


def test_installed_packages_announce_the_backend() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    group = text.split("[project.entry-points.torch_dynamo_backends]")[1]
    assert group.split()[:3] == ["meta", "=", '"meta.frontend.dynamo:backend"']
    assert "meta" in torch._dynamo.list_backends(exclude_tags=())
