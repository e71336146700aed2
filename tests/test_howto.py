"""The pages under `docs/howto` are true: what they say, done to the letter, works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import run_python

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "howto" / "operator.md").read_text("utf-8")
BLOCK = re.compile(r"```python file=(\S+)\n(.*?)```", re.DOTALL)


def test_the_page_touches_four_files() -> None:
    assert [name for name, _ in BLOCK.findall(PAGE)] == [
        "meta/op/elementwise.py",
        "meta/grad/elementwise.py",
        "meta/dialect/tvm/elementwise.py",
        "tests/op/elementwise.py",
    ]


MORE = {
    "meta/op/elementwise.py": (
        "@op(elementwise=True)\ndef isru",
        'ISRU = Names("array_api relax relay", onnx="com.acme.Isru")\n\n\n'
        "@op(elementwise=True, names=ISRU)\ndef isru",
    ),
    "meta/amp/rules.py": ("\nnever(op.expm1,", "\nnever(op.isru)\nnever(op.expm1,"),
    # As if ATen's sinc were it.
    "meta/dialect/torch/aten_calls.py": (
        'op.sinc: "sinc special_sinc"',
        'op.isru: "sinc", op.sinc: "special_sinc"',
    ),
}
"""What the page says in words: names elsewhere, a rule of mixed precision, a row of ATen's."""
EVERYWHERE = """
import meta, meta.array_api, meta.frontend.onnx, meta.frontend.relax, meta.frontend.relay
from meta.amp.cast_rule import rule_of as cast_rule
from meta.frontend.aten.registry import aten
from meta.grad import grad
from meta.interop.torch.overloads import overloads_of
from meta.ir.types import TensorType
from meta.testing.opcheck import dialects_of
from tools.fuzz_models.records import record_of
from tools.fuzz_models.torch_compile.overloads import calls
op = meta.op.isru
print(meta.array_api.isru is op, sorted(op.aspects.converters), sorted(dialects_of(op)))
print(cast_rule(op).casts.word, aten["sinc"].becomes == (op,), overloads_of(op))
(axes,) = op.axes_of({"x": TensorType((2, 3), "float32")})
print(axes.free(), record_of("isru").smooth, "torch.ops.aten.sinc.default({0})" in calls())
"""


def _copy(folder: Path, *names: str) -> None:
    """Copy folders and files of the project, with what is compiled of them: files keep their times,
    so Python compiles only those that are changed.
    """
    unfinished = shutil.ignore_patterns("*.pyc.*")
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=unfinished)
        else:
            shutil.copy(ROOT / name, folder)


@pytest.mark.long
def test_following_the_page_adds_an_operator(tmp_path: Path) -> None:
    """By four files; by six one with names elsewhere, mixed precision, and ATen's."""
    _copy(tmp_path, "meta", "tests", "tools", "pyproject.toml")
    for name, code in BLOCK.findall(PAGE):
        with open(tmp_path / name, "a", encoding="utf-8") as file:
            file.write(f"\n\n{code}")
    card = _run(tmp_path, "-m", "meta", "op", "isru")
    assert "MISSING" not in card.replace("converters", ""), card
    report = _run(
        tmp_path, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "tests/op", "-k", "isru"
    )
    assert re.search(r"\b23 passed", report), report
    for name, (old, new) in MORE.items():
        source = (tmp_path / name).read_text("utf-8")
        assert source.count(old) == 1
        (tmp_path / name).write_text(source.replace(old, new), "utf-8")
    assert len({name for name, _ in BLOCK.findall(PAGE)} | set(MORE)) == 6
    printed = _run(tmp_path, "-W", "ignore", "-c", EVERYWHERE)
    assert printed == (
        "True ['aten sinc', 'onnx com.acme.Isru', 'relax isru', 'relay isru'] ['torch', 'tvm']\n"
        "never True ('sinc',)\n"
        "['0', '1'] True True\n"
    ), printed


@pytest.mark.long
def test_following_the_optimizer_page_adds_an_optimizer(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "optimizer.md").read_text("utf-8")
    _copy(tmp_path, "meta", "tests", "pyproject.toml")
    blocks = BLOCK.findall(text)
    assert [name for name, _ in blocks] == [
        "meta/op/optimizer.py",
        "meta/optim/algorithms.py",
        "tests/op/optimizer.py",
    ]
    for name, code in blocks:
        with open(tmp_path / name, "a", encoding="utf-8") as file:
            file.write(f"\n\n{code}")
    card = _run(tmp_path, "-m", "meta", "op", "multi_tensor_adadelta")
    assert "MISSING" not in card.replace("converters", ""), card
    (use,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    printed = _run(tmp_path, "-c", use)
    assert printed.startswith("Adadelta(lr=0.01, rho=0.9, eps=1e-06, weight_decay=0.1")
    report = _run(
        tmp_path, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", "adadelta",
        "tests/op/test_ops.py", "tests/dialect/cuda/test_list_kernel.py",
    )  # fmt: skip
    assert re.search(r"\b\d\d passed", report), report


INSERTED = re.compile(r'```python file=(\S+) before="([^"]*)"\n(.*?)```', re.DOTALL)


def _follow(page: str, folder: Path) -> set[str]:
    """Put the code of a page where it says; return the names of the files."""
    for name, code in BLOCK.findall(page):
        with open(folder / name, "a", encoding="utf-8") as file:
            file.write(f"\n\n{code}")
    inserted = INSERTED.findall(page)
    for name, line, code in inserted:
        source = (folder / name).read_text("utf-8")
        assert source.count(f"\n{line}\n") == 1
        (folder / name).write_text(source.replace(f"\n{line}\n", f"\n{code}{line}\n"), "utf-8")
    return {name for name, *_ in (*BLOCK.findall(page), *inserted)}


@pytest.mark.long
def test_following_the_node_page_adds_a_node_kind(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "node.md").read_text("utf-8")
    _copy(tmp_path, "meta")
    touched = _follow(text, tmp_path)
    assert touched == {"meta/ir/expr.py", "meta/vm/run/interpreter.py", "meta/vm/compiler/emit.py"}
    (use,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    printed = _run(tmp_path, "-c", use)
    assert "%1: float32[4] = assume(%0) -> float32[4]" in printed
    assert printed.endswith("[-1. -1. -1. -1.] [-1. -1. -1. -1.]\n")


def _run(folder: Path, *arguments: str, package: Path | None = None) -> str:
    """Run Python in a folder, with `meta` from there or from ``package``; return what it prints."""
    return run_python(*arguments, cwd=folder, first=package or folder, tvm=True)


@pytest.mark.long
def test_the_tuning_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("META_TUNE", "cached")
    printed = _run_page("../tuning.md", tmp_path, cwd=tmp_path)
    assert "measured" in printed, printed


def _run_page(page: str, folder: Path, kind: str = "", cwd: Path = ROOT) -> str:
    """Run the Python blocks of a page, and those of a ``kind``, as one script in ``cwd``; return
    what it printed.
    """
    text = (ROOT / "docs" / "howto" / page).read_text("utf-8")
    script = folder / "page.py"
    blocks = re.findall(rf"```python(?: {kind})?\n(.*?)```", text, re.DOTALL)
    script.write_text("\n\n".join(blocks), "utf-8")
    return _run(cwd, str(script), package=ROOT)


def test_the_backend_page_runs(tmp_path: Path) -> None:
    printed = _run_page("backend.md", tmp_path)
    assert re.search(r"->\s+acme\s+plevel 15", printed), printed
    assert "{'acme.scaled_log_softmax': 1}" in printed


def test_the_triton_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    printed = _run_page("triton.md", tmp_path)
    assert printed.startswith("[0.0, 2.0, 3.0]\n") and "triton  plevel 1" in printed
    assert re.search(r"0\.2689\d* +0\.7310\d*\]\n +\[0\.5", printed), printed
    assert "triton measured\ntriton@BLOCK=512,num_warps=2 measured\n" in printed
    assert printed.endswith("[0.0, 2.0, 3.0]\n[-0.5, 2.0]\n3000.0\n")


@pytest.mark.long
def test_the_page_on_many_devices_runs(tmp_path: Path) -> None:
    printed = _run_page("../distributed.md", tmp_path, cwd=tmp_path)
    assert (tmp_path / "net.json").exists()
    assert printed.startswith("[[1.5, 3.0], [1.5, 3.0], [1.5, 3.0], [1.5, 3.0]]\n")
    assert "the ranks call different collectives" in printed and "\nTrue\n" in printed
    assert "reduce_from(float32[2, 4]): dense of parts" in printed  # of the tensor parallel model
    page = (ROOT / "docs" / "distributed.md").read_text("utf-8")
    programs = re.findall(r"```\n(func @main.*?)```", page, re.DOTALL)
    assert programs and all(program in printed for program in programs)


def test_the_tasks_page_runs(tmp_path: Path) -> None:
    printed = _run_page("tasks.md", tmp_path)
    assert "softcap.backward(x (RO input), dy (RO gradient), dx (WO gradient))" in printed
    assert "{'acme.softcap': 1, 'tvm.sum': 1, 'acme.softcap_backward': 1}" in printed
    assert "slot 'sacle'" in printed and "did you mean 'scale'?" in printed
    assert "never asked for 'dx'" in printed


def test_the_control_flow_page_runs(tmp_path: Path) -> None:
    printed = _run_page("control_flow.md", tmp_path)
    assert "func @while_loop(" in printed
    assert "Python decides here" in printed


@pytest.mark.long
def test_the_derivatives_page_runs(tmp_path: Path) -> None:
    printed = _run_page("../derivatives.md", tmp_path)
    page = (ROOT / "docs" / "derivatives.md").read_text("utf-8")
    assert printed.splitlines() == re.findall(r"# prints: (.*)", page)


@pytest.mark.long
def test_the_language_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    printed = _run_page("../language.md", tmp_path, cwd=tmp_path)
    page = (ROOT / "docs" / "language.md").read_text("utf-8")
    assert printed.splitlines() == re.findall(r"# prints: (.*)", page)


def test_the_layers_page_runs(tmp_path: Path) -> None:
    printed = _run_page("layers.md", tmp_path)
    assert "85 parameters, 0 other numbers, 340 B" in printed


@pytest.mark.long
def test_the_weights_page_runs(tmp_path: Path) -> None:
    printed = _run_page("weights.md", tmp_path)
    assert "missing: '4.weight'" in printed
    assert "unknown: '4.wieght' (the model has '4.weight')" in printed


def test_the_page_on_onnx_runs(tmp_path: Path) -> None:
    printed = _run_page("onnx_export.md", tmp_path, cwd=tmp_path)
    assert printed.startswith("images ['batch', 3, 32, 32] -> scores ['batch', 10]\n")
    assert "'conv.bias', 'conv.weight', 'head.bias', 'head.weight', 'norm.bias'" in printed
    assert "3 calls of this program are not supported" in printed
    assert "['linalg_inv', 'erfinv', 'lgamma']" in printed


def test_the_page_on_looking_at_programs_runs(tmp_path: Path) -> None:
    printed = _run_page("seen.md", tmp_path, cwd=tmp_path)
    assert printed.startswith("net.html\n") and "no CUDA graph: the device is cpu" in printed
    assert (tmp_path / "net.html").exists() and (tmp_path / "net.json").exists()


def test_the_page_on_compiled_modules_runs(tmp_path: Path) -> None:
    printed = _run_page("compiled_module.md", tmp_path, cwd=tmp_path)
    assert printed.startswith("<module Net on cpu: (images: float32[batch, 3, 16, 16]) -> logits")
    assert "{'logits': (32, 4), 'hidden': (32, 8)}" in printed
    assert "input 'images': dimension 'batch', axis 0, is out of range" in printed
    assert "1 to 32" in printed and "a call on cpu" in printed


@pytest.mark.long
def test_the_page_on_frozen_programs_runs(tmp_path: Path) -> None:
    printed = _run_page("frozen.md", tmp_path, cwd=tmp_path)
    assert printed.count("packed_conv2d") == 2 and "packed_matmul" in printed
    assert "permute_dims" not in printed and printed.endswith("before it is compiled\n")


def test_following_the_page_on_c_libraries(tmp_path: Path) -> None:
    """The library is written, the C program compiled as the page says, and the script run by a
    Python that sees no packages.
    """
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    printed = _run_page("c_library.md", tmp_path, cwd=tmp_path)
    assert printed.startswith("digits.so digits.h\n")
    assert "torch.linalg_inv(float32[4, 4]): runs on torch" in printed
    text = (ROOT / "docs" / "howto" / "c_library.md").read_text("utf-8")
    (program,) = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    ((name, script),) = BLOCK.findall(text)
    (command,) = re.findall(r"```bash\n(cc .*?)\n```", text)
    (tmp_path / "main.c").write_text(program, "utf-8")
    (tmp_path / name).write_text(script, "utf-8")
    flags = "-std=c99 -pedantic -Wall -Wextra -Werror"
    commands = (command.replace("cc ", f"cc {flags} ", 1), f"{sys.executable} -S -I {name}")
    found = [
        subprocess.run(["sh", "-c", c], cwd=tmp_path, capture_output=True, text=True, check=False)
        for c in commands
    ]
    assert [(run.returncode, run.stderr) for run in found] == [(0, "")] * 2
    assert found[0].stdout.splitlines() == [
        "Digits.forward: 1 inputs",
        "images has 4 axes, the first is batch",
        "batch is 1 to 64",
        "probabilities: 120 bytes",
        "1.000",
        "1: dimension batch is out of range: 65 is not in 1 to 64",
    ]
    assert found[1].stdout == "1.000\n"


LORA = """
import meta.dialect.tvm.build, meta.vm.compilation
counts = {}
def counted(owner, name):
    original = getattr(owner, name)
    def run(*args, **more):
        counts[name] = counts.get(name, 0) + 1
        return original(*args, **more)
    setattr(owner, name, run)
counted(meta.vm.compilation, "emit")
counted(meta.vm.compilation, "bind_kernels")
counted(meta.dialect.tvm.build, "_compile")
"""


def test_following_the_lora_page_compiles_once(tmp_path: Path) -> None:
    """Its code runs with what compiles programs and kernels counted: once, before any adapter."""
    text = (ROOT / "docs" / "howto" / "lora.md").read_text("utf-8")
    compiled, *rest = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "compile_model" in compiled and not any("compile" in block for block in rest)
    script = tmp_path / "page.py"
    merged = [*rest, "print(counts)"]
    script.write_text("\n\n".join([LORA, compiled, "print(counts); counts.clear()", *merged]))
    printed = _run(tmp_path, str(script), package=ROOT).splitlines()
    assert printed[0].startswith("{") and "'emit': 1" in printed[0], printed
    assert printed[1] == "{}", printed


def test_the_page_on_cuda_graphs_runs(tmp_path: Path) -> None:
    printed = _run_page("cuda_graphs.md", tmp_path)
    assert printed.startswith(("no CUDA graph: the device is cpu", "runs as CUDA graphs")), printed


@pytest.mark.long
def test_the_gpu_page_runs(tmp_path: Path) -> None:
    """Without what is for a GPU only."""
    printed = _run_page("../gpu.md", tmp_path)
    assert "the result is larger than the memory of" in printed and "peak" in printed


@pytest.mark.cuda
def test_the_gpu_page_runs_on_a_gpu(tmp_path: Path) -> None:
    printed = _run_page("../gpu.md", tmp_path, "cuda")
    assert "\nruns as CUDA graphs" in printed and "larger than the memory of cuda:0" in printed
    assert "->  mine" in printed


@pytest.mark.long
def test_following_the_pass_page_adds_a_pass(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "pass.md").read_text("utf-8")
    _copy(tmp_path, "meta", "tests", "pyproject.toml")
    touched = _follow(text, tmp_path)
    assert touched == {
        "meta/passes/double_by_add.py",
        "meta/vm/compiler/pipeline.py",
        "tests/passes/test_double_by_add.py",
    }
    report = _run(
        tmp_path, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "tests/passes", "-k",
        "double_by_add",
    )  # fmt: skip
    assert re.search(r"\b8 passed", report), report


def test_the_cast_rule_page_runs(tmp_path: Path) -> None:
    printed = _run_page("cast_rule.md", tmp_path)
    assert "operators have no cast rule: weighted" in printed
    assert "for matmul.x1" in printed
    assert "3\n1\nbfloat16\nbfloat16 float32 float32\n" in printed


@pytest.mark.long
def test_following_the_cast_rule_page_adds_a_rule(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "cast_rule.md").read_text("utf-8")
    _copy(tmp_path, "meta", "tests", "pyproject.toml")
    ((name, code),) = BLOCK.findall(text)
    with open(tmp_path / name, "a", encoding="utf-8") as file:
        file.write(code)
    assert re.search(
        r"cast rule +meta/amp/rules.py:\d+ +never", _run(tmp_path, "-m", "meta", "op", "softsign")
    )
    report = _run(
        tmp_path,
        *("-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"),
        *("tests/amp/test_operators.py", "-k", "softsign"),
    )
    assert re.search(r"\b6 passed", report), report


@pytest.mark.parametrize(("page", "count"), [("enable", 3), ("training_step", 4)])
def test_pages_about_programs_of_torch_run(page: str, count: int) -> None:
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == count
    names: dict[str, object] = {}
    for code in blocks:
        exec(compile(code, f"docs/howto/{page}.md", "exec"), names)


@pytest.mark.long
def test_the_page_of_the_emulator(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "emulator.md").read_text("utf-8")
    (tmp_path / "test_kernels.py").write_text(
        "\n\n".join(t for _, t in BLOCK.findall(page)), "utf-8"
    )
    arguments = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "test_kernels.py"]
    assert "3 passed" in run_python(*arguments, cwd=tmp_path, tvm=True)
