"""The benchmarks of models on a GPU, as far as they go without one: what is run when, what is kept,
how figures become shares and goals; and that the models that are strangers run at all.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
KNOWN, STRANGER = "bert-train-fp16", "roberta-train-bf16"
TINY_NAMES = [
    f"{name}-{mode}-bf16"
    for name in (
        *("roberta", "deberta", "smollm", "qwen2", "mistral", "gemma2", "gptneox", "t5", "whisper"),
    )
    for mode in ("infer", "train")
]
IMAGE_NAMES = [
    f"{name}-{mode}-bf16"
    for name in (
        *("convnext", "efficientnet", "vit", "swin", "regnet"),
        *("mobilenetv3", "resnext", "mixer", "deit3"),
    )
    for mode in ("infer", "train")
]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what imports a file of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def figures(ms: float, peak: float = 100.0, first: float | None = None) -> dict[str, Any]:
    found = {"ms": ms, "host_ms": ms, "peak_mb": peak, "values": [[1.0]]}
    return found if first is None else found | {"first_call": first}


class Process:
    """A process that writes down what happens to it, and measures nothing."""

    log: list[str]

    def __init__(self, row: str, contender: str, folder: str, flags: Any, *how: Any) -> None:
        self.row, self.contender = row, contender
        self.name = f"{row} {contender}{' again' * ('--first-call-only' in flags)}"
        self.log.append(f"start {self.name}")

    def ready(self) -> None:
        self.log.append(f"ready {self.name}")

    def go(self, cores: Any = ()) -> None:
        self.log.append(f"go {self.name}{f' on {len(cores)}' * bool(cores)}")

    def measure(self) -> dict[str, Any]:
        self.log.append(f"measure {self.name}")
        return figures(1.0, first=2.0)

    def end(self) -> None:
        self.log.append(f"end {self.name}")


@pytest.fixture
def run_of(benchmarks: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes a `Run` of the contenders dynamo and eager whose processes are recorded."""
    running = benchmarks("models.cuda_running")
    monkeypatch.setattr(running, "Process", Process)
    monkeypatch.setattr(Process, "log", [], raising=False)
    every = benchmarks("models.cuda_strangers").EVERY_ROW

    def make(names: list[str], **options: Any) -> Any:
        options = {"first_call": frozenset(), "processes": 16, "gigabytes": 80.0, **options}
        return running.Run({n: every[n] for n in names}, ["dynamo", "eager"], **options)

    return make


def test_one_after_the_other(run_of: Any) -> None:
    found = list(run_of([KNOWN, STRANGER], warm=("dynamo",)).measured())
    assert [f[:2] for f in found] == list(product((KNOWN, STRANGER), ("dynamo", "eager")))
    assert [("warm_call" in f[2], "first_call" in f[2]) for f in found] == 2 * [
        (True, True),
        (False, True),
    ]
    assert Process.log[:4] == [
        *(f"{did} {KNOWN} dynamo" for did in ("start", "measure")),
        *(f"{did} {KNOWN} dynamo again" for did in ("start", "go")),
    ]


def test_together_first_calls_are_alone(run_of: Any) -> None:
    cold = frozenset([(KNOWN, "dynamo"), (STRANGER, "dynamo")])
    run = run_of([KNOWN, STRANGER], together=True, first_call=cold, warm=("dynamo",))
    found = {f[:2]: f[2] for f in run.measured()}
    assert found[KNOWN, "dynamo"]["first_call"] == found[KNOWN, "dynamo"]["warm_call"] == 2.0
    assert "first_call" not in found[STRANGER, "eager"]
    first_go = next(i for i, line in enumerate(Process.log) if line.startswith("go"))
    assert sum(line.startswith("ready") for line in Process.log[:first_go]) == 6
    did = [line for line in Process.log[first_go:] if line.split()[0] in ("go", "measure")]
    on = f" on {len(os.sched_getaffinity(0))}"
    assert did == [
        *(
            line
            for row in (KNOWN, STRANGER)
            for line in (
                f"go {row} dynamo{on}",
                f"go {row} dynamo again{on}",
                f"measure {row} dynamo again",
            )
        ),
        *(f"go {row} eager" for row in (KNOWN, STRANGER)),
        *(f"measure {row} {c}" for row in (KNOWN, STRANGER) for c in ("dynamo", "eager")),
    ]
    assert sum(line.startswith("end") for line in Process.log) == 6


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_lanes_share_the_cores(run_of: Any) -> None:
    rows = [KNOWN, STRANGER, "bert1-train-fp16"]
    run = run_of(rows, together=True, first_call=frozenset(product(rows, ["dynamo"])), lanes=2)
    assert all(("first_call" in f) == (name == "dynamo") for _, name, f in run.measured())
    cores = len(os.sched_getaffinity(0))
    on = {int(line.split()[-1]) for line in Process.log if line.startswith("go") and "on" in line}
    assert on <= {cores // 2, (cores + 1) // 2}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_process_that_fails(benchmarks: Any, tmp_path: Path, capfd: Any) -> None:
    process = benchmarks("models.cuda_running").Process(
        STRANGER, "eager", str(tmp_path), ["--tiny"], True, 1
    )
    process.ready()
    process.go()
    process.ready()
    record = process.measure()
    assert record["failed"].startswith("exit status 1: ") and "CUDA" in record["failed"]
    assert f"{STRANGER} eager:\nTraceback" in capfd.readouterr().err


def test_groups_have_room(run_of: Any, benchmarks: Any) -> None:
    names = list(benchmarks("models.cuda_strangers").STRANGERS)
    assert [len(g) for g in run_of(names, processes=8, gigabytes=1e3).groups()] == [4] * 9
    one = run_of([STRANGER]).rows[STRANGER]
    rows = {str(i): replace(one, gigabytes=size) for i, size in enumerate((9.3, 19.3, 1.3, 50.0))}
    run = replace(run_of([STRANGER], gigabytes=60.0), rows=rows)
    assert run.groups() == [["0", "1"], ["2"], ["3"]]


def test_each_stranger_has_a_machine(benchmarks: Any) -> None:
    rows = benchmarks("models.cuda_strangers").STRANGERS
    contenders = benchmarks("dynamo_cuda").CONTENDERS
    need = benchmarks("models.cuda_running").CONTEXT_GIGABYTES
    assert len(rows) == 36 and {r.precision for r in rows.values()} == {"bfloat16"}
    assert max(len(contenders) * (r.gigabytes + need) for r in rows.values()) < 139


def test_rows_are_kept(run_of: Any, benchmarks: Any, tmp_path: Path, capsys: Any) -> None:
    records = benchmarks("models.cuda_records")
    file = tmp_path / "rows.jsonl"
    assert records.read_rows(file) == (None, {})
    found = records.collect(run_of([KNOWN, STRANGER]), "a card", file)
    assert records.read_rows(file) == ("a card", found) and set(found) == {KNOWN, STRANGER}
    assert f"{KNOWN:22s} dynamo" in capsys.readouterr().err
    assert len(file.read_text().splitlines()) == 2
    with file.open("a") as lines:
        print(json.dumps({"conditions": "another", "row": "x", "contenders": {}}), file=lines)
    with pytest.raises(ValueError, match="a card and of another"):
        records.read_rows(file)


def test_a_whole_file_needs_no_gpu(
    run_of: Any, benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    records, program = benchmarks("models.cuda_records"), benchmarks("dynamo_cuda")
    file = tmp_path / "rows.jsonl"
    records.collect(run_of([STRANGER]), "a card", file)
    command = ["dynamo_cuda.py", "--rows", STRANGER, "--contenders", "dynamo,eager", "--check"]
    monkeypatch.setattr(sys, "argv", [*command, "--records", str(file)])
    assert program.main() == 1  # for the mean
    text = capsys.readouterr().out
    assert text.startswith("a card\n") and "RoBERTa-base, B16 S256 train" in text
    assert "strangers time to best 1.00x" in text


def test_results_are_compared(benchmarks: Any) -> None:
    records = benchmarks("models.cuda_records")
    right, wrong = figures(1.0), figures(1.0) | {"values": [[1.05]]}
    for row, name, is_wrong in [
        ("roberta-train-bf16", "dynamo", True),
        ("roberta-infer-bf16", "dynamo", False),
        (KNOWN, "compile", True),
    ]:
        found = {"eager": dict(right), name: dict(wrong)}
        records.compare(row, found)
        assert ("failed" in found[name]) == is_wrong
    found = {"eager": dict(right), "dynamo": figures(1.0) | {"values": [[float("nan")]]}}
    records.compare("roberta-infer-bf16", found)
    assert "differ" in found["dynamo"]["failed"]


def test_goals(benchmarks: Any) -> None:
    program = benchmarks("dynamo_cuda")

    def result(row: str, own: float, first: float = 1.0, peak: float = 50.0) -> Any:
        found = {
            "dynamo": figures(own, peak, first),
            "eager": figures(20.0),
            "compile": figures(8.0, 100.0, 5.0),
            "reduce-overhead": figures(10.0, 80.0, 9.0),
            "max-autotune-no-cudagraphs": figures(9.0, 70.0, 50.0),
        }
        return program.result(row, found, False)

    good = result(KNOWN, 7.0)
    assert [good[n] for n in program.SHARES] == pytest.approx([7 / 8, 0.5, 1 / 9])
    assert good["missed"] == []
    assert result(KNOWN, 8.1, 3.0)["missed"] == ["time to best", "first call"]
    large = result("vit-train-bf16", 8.0, peak=106.0)
    assert large["missed"] == ["memory"]
    every = [good, large, result("vit-infer-bf16", 4.0)]
    means = program.means(every)
    assert means["strangers"]["time"] == pytest.approx((1.0 * 0.5) ** 0.5)
    assert means["all rows"]["time"] == pytest.approx((7 / 8 * 1.0 * 0.5) ** (1 / 3))
    assert program.missed(every) == ["vit-train-bf16: memory"]
    assert program.missed([result("vit-train-bf16", 7.0)]) == ["the mean"]
    assert "known time to best 0.88x" in program.sentence(every)
    table = program.rows(every)
    assert all(len(line) == len(table[0]) for line in table)


def test_a_failed_contender_has_no_share(benchmarks: Any) -> None:
    program = benchmarks("dynamo_cuda")
    found = {"dynamo": {"failed": "exit status 1"}, "eager": figures(1.0)}
    record = program.result(KNOWN, found, True)
    assert record["time"] is None and record["missed"] == ["failed"]
    assert benchmarks("models.cuda_records").failed([record])
    assert "failed" in program.rows([record])[1]


def results_of(benchmarks: Any, row: str, name: str, precision: str = "") -> list[torch.Tensor]:
    """Return the results of three calls of a contender on the CPU, in a tiny size."""
    found = benchmarks("models.cuda_strangers").STRANGERS[row]
    found = replace(found, precision=precision or found.precision)
    call = benchmarks("models.contenders").Contender(found, name, "cpu", True).compiled()
    return [call().detach().float() for _ in range(3)]


def check_tiny(benchmarks: Any, row: str) -> None:
    found = results_of(benchmarks, row, "eager")
    assert all(f.isfinite().all() for f in found) and found[0].abs().max() > 0
    if "train" in row:
        assert found[0].shape == () and found[2] < found[0]
    else:
        torch.testing.assert_close(found[2], found[0], rtol=0, atol=0)


@pytest.mark.parametrize("row", TINY_NAMES)
def test_tiny_strangers_of_transformers(benchmarks: Any, row: str) -> None:
    pytest.importorskip("transformers")
    check_tiny(benchmarks, row)


@pytest.mark.parametrize("row", IMAGE_NAMES)
def test_tiny_strangers_of_timm(benchmarks: Any, row: str) -> None:
    pytest.importorskip("timm")
    check_tiny(benchmarks, row)


def test_all_strangers_are_tried(benchmarks: Any) -> None:
    rows = benchmarks("models.cuda_strangers").STRANGERS
    assert set(rows) == {*TINY_NAMES, *IMAGE_NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("row", ["t5-train-bf16", "whisper-infer-bf16"])
def test_a_tiny_stranger_under_the_backend(benchmarks: Any, row: str) -> None:
    pytest.importorskip("transformers")
    torch._dynamo.reset()
    found = results_of(benchmarks, row, "dynamo")
    expected = results_of(benchmarks, row, "eager")
    for one, other in zip(found, expected, strict=True):
        bound = 3e-2 * other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0, atol=bound)


class Recorder:
    """Events as torch's profiler writes them: kernels one after the other, each launched within
    ranges of the host, the outer first.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]

    def launch(self, kernels: str, us: float, *ranges: tuple[str, Any]) -> None:
        """Record kernels of ``us`` each within ranges: names, and types with shapes of inputs."""
        number = len(self.events)
        for depth, (name, inputs) in enumerate(ranges):
            args = {"Input type": [i[0] for i in inputs], "Input Dims": [i[1] for i in inputs]}
            time = {"ts": 100.0 * number + depth, "dur": 90.0 - 2 * depth}
            self.events.append({"cat": "cpu_op", "name": name, "tid": 1, **time, "args": args})
        for kernel in kernels.split():
            correlation = {"args": {"correlation": len(self.events)}}
            at = {"ts": 100.0 * number + 50, "dur": 1.0, **correlation}
            self.events.append({"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, **at})
            self.events.append({"cat": "kernel", "name": kernel, "tid": 7, **at, "dur": us})


def recorded(benchmarks: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return traces of two layers of `meta`, whose second gradient is computed late, and of
    Inductor's.
    """
    operations = benchmarks("models.cuda_profile").operations
    ours, theirs = Recorder(), Recorder()
    x, w = ["float16", [32, 64]], ["float16", [64, 128]]
    y, half = ["float16", [32, 128]], "c10::Half"
    sites = []

    def launch(kernel: str, us: float, what: str, *types: Any) -> None:
        ours.launch(kernel, us, (f"meta {len(sites)}", []), ("aten::mm", []))
        sites.append({"what": what, "inputs": list(types[:-1]), "outputs": list(types[-1:])})

    for _ in range(2):
        launch("nvjet_hsh", 10.0, "cublas.matmul", x, w, y)
        launch("meta_0_kernel", 5.0, "tvm.fused_add_gelu", y, y)
        launch("meta_1_kernel", 4.0, "tvm.fused_astype", y, y)
    launch("nvjet_hsh", 8.0, "cublas.matmul_nt", y, w, x)
    launch("nvjet_hsh", 9.0, "cublas.matmul_tn", x, y, w)
    for number in range(2):
        shapes = [(half, [32, 64]), (half, [64, 128])]
        theirs.launch("nvjet_hsh", 11.0, ("CompiledFunction", []), ("aten::mm", shapes))
        name = f"triton_poi_fused_add_gelu_{number}"
        theirs.launch(name, 6.0, (name, [(half, [32, 128]), ("Scalar", [])]))
    late = ("aten::mm", [(half, [64, 32]), (half, [32, 128])])
    theirs.launch("nvjet_hsh splitKreduce_kernel", 5.0, late)
    theirs.launch("nvjet_hsh", 8.0, ("aten::mm", [(half, [32, 128]), (half, [128, 64])]))
    theirs.launch("FusedAdam", 3.0, ("aten::_fused_adamw_", [("TensorList", [[64, 128], [128]])]))
    both = (("dynamo", ours, sites), ("compile", theirs, []))
    found = [
        {"row": KNOWN, "contender": name, "ms": 0.1, "operations": operations(of.events, known)}
        for name, of, known in both
    ]
    return found[0], found[1]


def test_operations_are_named_by_the_outermost_range(benchmarks: Any) -> None:
    ours, theirs = recorded(benchmarks)
    assert [o["what"] for o in ours["operations"][:2]] == ["cublas.matmul", "tvm.fused_add_gelu"]
    assert ours["operations"][0]["kernels"] == ["nvjet_hsh"]
    named = theirs["operations"][1]
    assert named["what"] == "triton_poi_fused_add_gelu_0" and named["us"] == 6.0
    assert named["inputs"] == [["float16", [32, 128]]]
    sums = benchmarks("models.cuda_profile").by_class(theirs)
    assert sums["optimizer"] == [3.0, 1, 4 * (64 * 128 + 128)]
    assert sums["product"][:2] == [40.0, 5] and sums["idle"][0] == 100.0 - 55.0


def test_a_gap_pairs_what_computes_the_same(benchmarks: Any, tmp_path: Path) -> None:
    program = benchmarks("dynamo_cuda")
    traces = recorded(benchmarks)
    for one in traces:
        (tmp_path / f"{KNOWN}.{one['contender']}.json").write_text(json.dumps(one))
    pair = ["dynamo", "compile"]
    found = json.loads(program.explained(KNOWN, pair, tmp_path, False, True))
    groups = {(tuple(g["ours"]), tuple(g["theirs"])): g for g in found["groups"]}
    forward = groups[("cublas.matmul",), ("aten::mm",)]
    assert forward["times"] == 2 and forward["lost"] == -2.0
    between = groups[("tvm.fused_add_gelu", "tvm.fused_astype"), ("triton_poi_fused_add_gelu",)]
    assert between["times"] == 2 and between["lost"] == 6.0 and between["anchor"] == []
    assert groups[("cublas.matmul_tn",), ("aten::mm",)]["lost"] == -1.0
    assert groups[("cublas.matmul_nt",), ("aten::mm",)]["lost"] == 0.0
    assert found["classes"][0]["copy"][:2] == [8.0, 2] and "copy" not in found["classes"][1]
    text = program.explained(KNOWN, pair, tmp_path, False, False)
    assert "+6.0 us in 2 places, between anchors" in text and "tvm.fused_astype" in text
    assert "cublas.matmul_tn" in benchmarks("models.cuda_profile").profile_text(traces[0])


def test_launches_of_a_program_are_ranges(benchmarks: Any) -> None:
    profiled = benchmarks("models.cuda_profile")
    every = benchmarks("models.cuda_strangers").EVERY_ROW
    contender = benchmarks("models.contenders").Contender(every[KNOWN], "meta", "cpu", True)
    call, sites = contender.compiled(), []
    with profiled._launches_in_ranges(sites):
        call()
    kernels = {s["what"] for s in sites}
    assert {"torch.fused_attention"} <= kernels and all(len(s) == 3 for s in sites)
    before = len(sites)
    call()
    assert len(sites) == before


@pytest.mark.parametrize(
    ("off", "is_near"),
    [(0.0, True), (5e-4, True), (2.9e-3, True), (9e-3, False), (float("nan"), False)],
)
def test_losses_are_compared_by_what_rounding_does(
    off: float, is_near: bool, benchmarks: Any
) -> None:
    """Three times as far as losses from other parameters, whenever these were as far."""
    curves = benchmarks("models.loss_curves").Curves
    eager = torch.linspace(4.0, 1.0, 200)
    noise = torch.linspace(0.0, 1e-3, 200)
    found = curves(KNOWN, eager, eager + noise, eager + off * noise / 1e-3)
    assert (found.ratio() <= 1) == is_near
    assert f"{KNOWN}: 200 losses, the last " in str(found)


def test_the_losses_of_a_row(benchmarks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sys_argv = ["step_cuda.py", "--losses", "3", "--tiny", "--check", "--rows", KNOWN]
    command = benchmarks("step_cuda")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys_argv)
        assert command.main() == 0
    assert "Beyond the noise: none." in capsys.readouterr().out
