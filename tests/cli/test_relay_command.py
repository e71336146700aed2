"""Tests of ``python -m meta relay``: info, run, convert."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import meta
from meta.cli.main import main

DATA = Path(__file__).parents[1] / "data" / "relay"
ONNX = DATA / "models" / "onnx_params"
DOTTED = DATA / "models" / "dotted_names"
DYNAMIC = DATA / "models" / "dynamic_batch"


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    file, params = str(ONNX / "model.json"), str(ONNX / "params.bin")
    assert main(["relay", "info", file, "--params", params, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == [{"name": "input.1", "type": "Tensor[(1, 3, 16, 16), float32]"}]
    assert found["parameters"][0] == {"name": "0.weight", "type": "Tensor[(4, 3, 3, 3), float32]"}
    assert found["operators"]["nn.conv2d"] == 1
    assert found["tvm_version"] == "0.15"
    assert found["unsupported"] == []
    assert main(["relay", "info", file]) == 0
    shown = capsys.readouterr().out
    assert "nn.conv2d" in shown
    assert "inputs (9)" in shown


def test_info_lists_what_is_not_supported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "odd.relay"
    file.write_text("fn (%x: Tensor[(2), float32]) { nn.reluu(nn.reluu(%x)) }\n")
    assert main(["relay", "info", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "nn.reluu" in shown
    assert "nn.relu" in shown.replace("nn.reluu", "")


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.npz"
    words = ["--params", str(DOTTED / "params.bin"), "--inputs", str(DOTTED / "inputs.npz")]
    arguments = ["relay", "run", str(DOTTED / "model.relay"), *words, "--out", str(out)]
    assert main([*arguments, "--dialect", "torch"]) == 0
    assert capsys.readouterr().out == "out0: float32[2, 3]\n"
    assert main([*arguments, "--dialect", "torch", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"device": "cpu", "out": str(out), "results": {"out0": "float32[2, 3]"}}
    expected = np.load(DOTTED / "outputs.npz")["out0"]
    np.testing.assert_allclose(np.load(out)["out0"], expected, 1e-5)


def test_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "compiled"
    arguments = ["relay", "convert", str(DYNAMIC / "model.json"), "-o", str(folder)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["output"] == str(folder) and len(found["inputs"]) == 2
    inputs = np.load(DYNAMIC / "inputs.npz")
    result = meta.vm.load(folder)(meta.array(inputs["x"]), meta.array(inputs["w"]))
    expected = np.load(DYNAMIC / "outputs.npz")["out0"]
    np.testing.assert_allclose(result.numpy(), expected, 1e-5)
    types = ["--input", "float32[2,4]", "float32[3,4]"]
    assert main([*arguments, *types]) == 0
    x, w = (np.zeros((n, 4), np.float32) for n in (2, 3))
    assert meta.vm.load(folder)(x, w).shape == (2, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["info", "nowhere.relay"], "cannot be read"),
        (["info", "{junk}"], "is empty"),
        (["run", "{model}", "--inputs", "{junk}", "--out", "x.npz"], "inputs cannot be read"),
        (["run", "{model}", "--inputs", "{wrong}", "--out", "x.npz"], "no input 'z'"),
        (["run", "{model}", "--inputs", "{wrong}", "--out", "x", "--device", "tpu"], "device"),
        (["run", "{model}", "--inputs", "{wrong}", "--out", "x", "--dialect", "no"], "dialect"),
        (["convert", "{model}", "-o", "{out}", "--input", "float32["], "cannot be read"),
        (["convert", "{untyped}", "-o", "{out}"], "is not declared"),
    ],
)
def test_bad_input_is_one_message(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {"model": DYNAMIC / "model.relay", "out": tmp_path / "out"}
    for name, text in (("junk", ""), ("untyped", "fn (%x) { nn.relu(%x) }\n")):
        paths[name] = tmp_path / name
        paths[name].write_text(text)
    paths["wrong"] = tmp_path / "wrong.npz"
    np.savez(paths["wrong"], z=np.zeros(3))
    assert main(["relay", *(w.format(**paths) for w in words)]) == 2
    assert message in capsys.readouterr().err
