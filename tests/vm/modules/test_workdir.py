"""A folder holds a compiled module, which is loaded without source and compiler."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import meta
from meta.base import config, files
from meta.base.errors import ArgumentError, FileError, FormatError, UnknownName
from meta.cli.main import main
from meta.model import Model, trace
from tests.conftest import run_python
from tests.vm.modules.networks import CASES, MOST, compiled, expected, made, numbers
from tests.vm.modules.test_constants import others
from tests.vm.modules.test_run import close

ROOT = Path(__file__).parents[3]
ELSEWHERE = """
import sys
sys.modules["tvm"] = None  # cannot be imported
import meta
from pathlib import Path
from safetensors.torch import load_file, save_file
for name in sys.argv[1:]:
    given = load_file(f"{name}.in")
    weights = {k[2:]: v for k, v in given.items() if k.startswith("w.")}
    module = meta.load_module(Path("work") / name)
    inputs = {k: given[k] for k in module.input_names}
    first = module.run_with_tensors(inputs)
    module.set_many_constants(weights)
    second = module.run_with_tensors(inputs)
    found = {f"1.{k}": v for k, v in first.items()} | {f"2.{k}": v for k, v in second.items()}
    save_file(found, f"{name}.out")
    print(module)
"""


def test_modules_are_loaded_elsewhere(tmp_path: Path) -> None:
    """In a process that has neither their source nor a compiler, and sets weights there."""
    both = {}
    for name, case in CASES.items():
        model, other = made(case), case.make().eval()
        with meta.dialect.only("torch", "tvm"):
            module = compiled(case, model, dynamic=True, workdir=tmp_path / "work", name=name)
        assert module.folder == tmp_path / "work" / name
        values = others(model)
        other.load_state_dict(values)
        both[name] = model, other
        inputs = dict(zip(module.input_names, case.inputs(MOST), strict=True))
        if name == "gpt2":  # by its other name
            values["lm_head.weight"] = values.pop("transformer.wte.weight")
        save_file({**inputs, **{f"w.{k}": v for k, v in values.items()}}, tmp_path / f"{name}.in")
    printed = run_python("-c", ELSEWHERE, *CASES, cwd=tmp_path)
    assert [line.split()[1] for line in printed.splitlines()] == list(CASES)
    for name, models in both.items():
        found = load_file(tmp_path / f"{name}.out")
        for number, one in enumerate(models, 1):
            wanted = expected(one, CASES[name].inputs(MOST))
            close({k[2:]: v for k, v in found.items() if k.startswith(f"{number}.")}, wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = CASES["resnet"]
    where = tmp_path_factory.mktemp("modules")
    with meta.dialect.only("torch", "tvm"):
        module = compiled(case, made(case), dynamic=False, workdir=where)
    assert module.folder == where / "ResNet"
    return where / "ResNet"


def test_what_people_find(folder: Path) -> None:
    names = sorted(p.name for p in folder.iterdir())
    assert names == [
        "index.html", "kernels", "kernels.json", "meta-module.json", "passes", "passes.json",
        "program",
    ]  # fmt: skip
    page = (folder / "index.html").read_text("utf-8")
    for section in ("graph", "passes", "kernels", "memory", "program"):
        assert f'<section id="{section}">' in page
    passes = json.loads((folder / "passes.json").read_text("utf-8"))
    assert [p["pass"] for p in passes][:2] == ["input", "infer_type"]
    assert len(passes) == len(meta.vm.compiler.pipeline.pipeline(meta.base.device.CPU).passes) + 1
    written = {p.stem for p in (folder / "passes").iterdir()}
    assert (
        written == {p["program"] for p in passes} == {p["program"] for p in passes if p["changed"]}
    )
    for one in written:
        text = (folder / "passes" / f"{one}.txt").read_text("utf-8")
        functions = json.loads((folder / "passes" / f"{one}.json").read_text("utf-8"))
        for binding in functions["main"]["bindings"]:
            assert f"{binding['name']}: {binding['type']} = " in text or binding["type"] is None
            assert all(re.search(rf"{use}\b", text) for use in binding["uses"])
    last = json.loads((folder / "passes" / f"{passes[-1]['program']}.json").read_text("utf-8"))
    assert any("conv2d" in b.get("callee", "") for b in last["main"]["bindings"])
    kernels = json.loads((folder / "kernels.json").read_text("utf-8"))
    assert {k["dialect"] for k in kernels} == {"torch", "tvm"}
    for kernel in kernels:
        assert all((folder / "kernels" / f).read_text("utf-8").strip() for f in kernel["sources"])
        if kernel["dialect"] == "tvm":
            assert (folder / "program" / "kernels" / kernel["compiled"]).is_file()
            assert any(
                "T.prim_func" in (folder / "kernels" / f).read_text() for f in kernel["sources"]
            )


def test_anyone_whom_the_mask_lets_may_read(folder: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert folder.stat().st_mode & 0o777 == 0o755 & ~mask | 0o700


def test_a_module_is_saved_with_its_weights(tmp_path: Path) -> None:
    case = CASES["mlp"]
    model = made(case)
    module = compiled(case, model, dynamic=False)
    assert module.folder is None
    module.set_constant_with_tensor("last.bias", torch.tensor([1.0, 2.0, 3.0]))
    assert module.save(tmp_path / "a") == tmp_path / "a" == module.folder
    loaded = meta.load_module(tmp_path / "a")
    assert loaded.name == "MLP" and loaded.folder == tmp_path / "a"
    close(loaded.run_with_tensors(case.inputs(3)), expected(model, case.inputs(3)))
    loaded.set_constant_with_tensor("last.bias", torch.zeros(3))  # its own, not the model's
    assert model.last.bias.tolist() == [1.0, 2.0, 3.0]
    loaded.save(tmp_path / "a")  # over itself
    page = (tmp_path / "a" / "index.html").read_text("utf-8")
    assert "The passes are not kept" in page
    again = meta.load_module(tmp_path / "a")
    close(again.run_with_tensors(case.inputs(3)), loaded.run_with_tensors(case.inputs(3)))
    run = meta.vm.load(tmp_path / "a" / "program")
    close(run(*case.inputs(3)) and again.run_with_tensors(case.inputs(3)),
          {k: v.torch() for k, v in run(*case.inputs(3)).items()})  # fmt: skip


def test_names_that_the_program_does_not_use_are_kept(tmp_path: Path) -> None:
    class Half(Model):
        def build(self) -> None:
            self.used, self.other = meta.ones((2,)), meta.ones((3,))

        @trace
        def forward(self, x: Any) -> Any:
            return x * self.used

    meta.compile_model(Half().eval(), torch.ones(2), workdir=tmp_path)
    loaded = meta.load_module(tmp_path / "Half")
    loaded.set_many_constants({"used": torch.full((2,), 2.0), "other": torch.zeros(3)})
    assert loaded.run_with_tensors([torch.ones(2)])["output"].tolist() == [2.0, 2.0]
    with pytest.raises(ArgumentError, match="'other' is"):
        loaded.set_constant_with_tensor("other", torch.zeros(2))
    with pytest.raises(UnknownName):
        loaded.set_constant_with_tensor("another", torch.zeros(2))


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-x", "a/b", "../a", "a b", "a\n", "a\0", "ä", "x" * 101, 'a"'],
)
def test_unsafe_names(name: str, tmp_path: Path) -> None:
    case = CASES["mlp"]
    with pytest.raises(ArgumentError, match="no name of a module"):
        compiled(case, made(case), dynamic=False, workdir=tmp_path, name=name)
    assert list(tmp_path.iterdir()) == []


def test_names_of_their_own() -> None:
    x = torch.ones(2)
    odd = trace(lambda x: x + 1.0)
    assert meta.compile_model(odd, x).name == "lambda"
    model = made(CASES["mlp"])
    assert meta.compile_model(model.forward, *CASES["mlp"].inputs(2)).name == "forward"


def test_other_things_are_not_replaced(tmp_path: Path) -> None:
    case = CASES["mlp"]
    module = compiled(case, made(case), dynamic=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    module.executable.save(tmp_path / "program")
    for taken in ("full", "file", "program"):
        with pytest.raises(ArgumentError, match="holds something else than a compiled module"):
            module.save(tmp_path / taken)
    assert (tmp_path / "full" / "thesis.tex").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "full", "program"]
    with pytest.raises(FileError):
        module.save(tmp_path / "file" / "inside")


def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["mlp"]
    module = compiled(case, made(case), dynamic=False)
    module.save(tmp_path / "net")
    before = (tmp_path / "net" / "meta-module.json").read_bytes()

    def fails(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meta.vm.modules.workdir.page", fails)
    for place in ("net", "new"):
        with pytest.raises(FileError, match=f"{place} cannot be written"):
            module.save(tmp_path / place)
    assert [p.name for p in tmp_path.iterdir()] == ["net"]
    assert (tmp_path / "net" / "meta-module.json").read_bytes() == before
    assert meta.load_module(tmp_path / "net").run_with_tensors(case.inputs(3))


def damaged(folder: Path, **changes: Any) -> None:
    """Write other things to the module's own file, with a checksum that is right."""
    path = folder / "meta-module.json"
    record = {**json.loads(path.read_text()), **changes}
    record.pop("checksum")
    path.write_text(json.dumps({**record, "checksum": files.checksum(record)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "other"}, "is not of a compiled module"),
        ({"version": 2}, "another version of meta"),
        ({"constants": {"last.bias": 99}}, "no array for the constant 'last.bias'"),
        ({"constants": {"last.bias": "0"}}, "no array for the constant 'last.bias'"),
        ({"constants": {"last.bias": True}}, "no array for the constant 'last.bias'"),
        ({"unused": {"x": "float32[", "y": 1}}, "the constant 'x' has no type"),
        ({"unused": []}, "is damaged"),
        ({"name": 3}, "is damaged"),
    ],
)
def test_damage(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    case = CASES["mlp"]
    compiled(case, made(case), dynamic=False, workdir=tmp_path)
    damaged(tmp_path / "MLP", **changes)
    with pytest.raises(FormatError, match=message):
        meta.load_module(tmp_path / "MLP")


def test_what_is_no_module(tmp_path: Path) -> None:
    case = CASES["mlp"]
    module = compiled(case, made(case), dynamic=False)
    module.executable.save(tmp_path / "program")
    for place in (tmp_path, tmp_path / "program", tmp_path / "absent"):
        with pytest.raises(FormatError, match="holds no compiled module"):
            meta.load_module(place)
    module.save(tmp_path / "net")
    path = tmp_path / "net" / "meta-module.json"
    good = path.read_text()
    for text in ("", "{", "[]", good.replace("MLP", "MPL"), "[" * 100_000):
        path.write_text(text)
        with pytest.raises(FormatError):
            meta.load_module(tmp_path / "net")
    path.write_text(good)
    (tmp_path / "net" / "program" / "code.json").write_text("{}")
    with pytest.raises(FormatError, match=r"code\.json"):
        meta.load_module(tmp_path / "net")


def test_constants_that_share_memory(tmp_path: Path) -> None:
    """Loaded, they would no longer do so: what is set of one would not be seen in the other."""

    class Views(Model):
        def build(self) -> None:
            whole = torch.arange(6.0)
            self.a, self.b = meta.asarray(whole[:4]), meta.asarray(whole[2:])

        @trace
        def forward(self, x: Any) -> Any:
            return x + self.a * self.b

    module = meta.compile_model(Views().eval(), torch.zeros(4))
    module.set_constant_with_tensor("a", torch.ones(4))
    assert module.run_with_tensors([torch.zeros(4)])["output"].tolist() == [1.0, 1.0, 4.0, 5.0]
    with pytest.raises(ArgumentError, match=r"[ab] shares memory"):
        module.save(tmp_path / "views")
    assert list(tmp_path.iterdir()) == []


def test_a_program_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path / "cache"))
    case = CASES["resnet"]
    found = []
    with config.override(META_PROGRAM_CACHE=True), meta.dialect.only("torch", "tvm"):
        for i in range(2):
            model = made(case)
            module = compiled(case, model, dynamic=False, workdir=tmp_path, name=f"n{i}")
            assert bool(module.executable.history) == (i == 0)
            values = others(model)
            module.set_many_constants(values)
            close(module.run_with_tensors(case.inputs(3)), expected(model, case.inputs(3)))
            found.append(sorted(p.name for p in (tmp_path / f"n{i}" / "passes").iterdir()))
    assert found[0] == found[1]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "nets.py"
    source.write_text(
        "import meta\n\nclass Net(meta.Model):\n"
        "    def build(self):\n        self.fc = meta.model.Linear(4, 2)\n\n"
        "    @meta.model.trace\n    def forward(self, x):\n        return {'y': self.fc(x)}\n"
    )
    arguments = ["compile", f"{source}:Net", "--input", "float32[n, 4]", "--workdir"]
    assert main([*arguments, str(tmp_path / "out")]) == 0
    module = meta.load_module(tmp_path / "out" / "Net")
    assert module.constant_names == ["fc.weight", "fc.bias"]
    module.set_constant_with_tensor("fc.bias", torch.ones(2))
    found = module.run_with_tensors({"x": torch.zeros(5, 4)})
    assert found["y"].tolist() == [[1.0, 1.0]] * 5
    (tmp_path / "out" / "Net" / "meta-module.json").unlink()
    assert main([*arguments, str(tmp_path / "out")]) == 2
    assert "holds something else" in capsys.readouterr().err
    program = tmp_path / "add.meta"
    program.write_text("func @main(%a: float32[2]) -> float32[2] {\n"
                       "  %s: float32[2] = add(%a, %a)\n  return %s\n}")  # fmt: skip
    assert main(["compile", str(program), "--workdir", str(tmp_path / "text")]) == 0
    assert meta.load_module(tmp_path / "text" / "add").run_with_tensors([numbers(2)])
