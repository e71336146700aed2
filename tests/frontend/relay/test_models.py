"""Programs that TVM 0.6, 0.7 and 0.15 wrote, with what TVM computed: whole models, single
operators, each as text and as JSON, on both dialects, interpreted and compiled.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meta
from meta.frontend import relay
from meta.frontend.relay import RelayModel
from meta.ir import Module, parse, structural_equal
from meta.op.core import tree

DATA = Path(__file__).parents[2] / "data" / "relay"
MODELS, OPERATORS, OLD = (
    sorted(p.parent for p in (DATA / kind).rglob("outputs.npz"))
    for kind in ("models", "operators", "old")
)

# The shape of the result is the data's to say, which only torch's kernels can.
ONLY_TORCH = {
    "argwhere",
    *("dyn.broadcast_to", "dyn.full", "dyn.reshape", "dyn.strided_slice", "dyn.topk"),
}
# TVM 0.6 wrote bool arrays without their bytes: the JSON does not hold the value.
LOST = {DATA / "old" / "v0.6.1" / "scalars": "does not hold the value"}


def name_of(folder: Path) -> str:
    return str(folder.relative_to(DATA))


def load(folder: Path, file: str) -> RelayModel:
    params = folder / "params.bin"
    return relay.load(folder / file, params if params.exists() else None)


def arguments(model: RelayModel, folder: Path) -> tuple[Any, ...]:
    """Return the inputs in order: those that a name cannot tell apart are in the file's."""
    given = {n: meta.array(v) for n, v in np.load(folder / "inputs.npz").items()}
    try:
        return model.arguments(given)
    except meta.errors.ArgumentError:
        return tuple(given.values())


def check(folder: Path, result: Any, tolerance: float) -> None:
    expected = np.load(folder / "outputs.npz")
    leaves = [a.numpy() for a in tree.flatten(result)[0]]
    assert len(leaves) == len(expected.files)
    for found, name in zip(leaves, expected.files, strict=True):
        want = expected[name]
        assert (found.shape, found.dtype) == (want.shape, want.dtype)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(found, want, tolerance, tolerance)
        else:
            np.testing.assert_array_equal(found, want)


def tolerance_of(folder: Path) -> float:
    return 1e-4 if folder in MODELS else 2e-5


def files(folder: Path) -> list[str]:
    return [f for f in ("model.json", "model.relay") if not (folder in LOST and f[-1] == "n")]


def dialects(folder: Path) -> list[str]:
    return ["torch"] if folder.name in ONLY_TORCH else ["tvm", "torch"]


@pytest.mark.long
@pytest.mark.parametrize("folder", MODELS + OLD, ids=name_of)
def test_models(folder: Path) -> None:
    for file in files(folder):
        model = load(folder, file)
        args = arguments(model, folder)
        for dialect in dialects(folder):
            with meta.dialect.only(dialect):
                check(folder, model(*args), 1e-4)
                check(folder, meta.vm.compile(model, *args)(*args), 1e-4)


@pytest.mark.parametrize("folder", OPERATORS, ids=name_of)
def test_operators(folder: Path) -> None:
    """From JSON compiled by the default dialects, from text interpreted by torch's."""
    model = load(folder, "model.json")
    args = arguments(model, folder)
    check(folder, meta.vm.compile(model, *args)(*args), 2e-5)
    with meta.dialect.only("torch"):
        check(folder, load(folder, "model.relay")(*args), 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("folder", OPERATORS, ids=name_of)
def test_operators_in_every_way(folder: Path) -> None:
    for file in files(folder):
        model = load(folder, file)
        args = arguments(model, folder)
        for dialect in dialects(folder):
            with meta.dialect.only(dialect):
                check(folder, model(*args), 2e-5)
                check(folder, meta.vm.compile(model, *args)(*args), 2e-5)


_FLOAT = re.compile(r"(?<![%\w.])-?\d+(?:\.\d*(?:e[-+]?\d+)?|e[-+]?\d+)")  # and no projection


def rounded(module: Module) -> Module:
    """Return a program with its floating point numbers to the digits that text has."""
    text = re.sub(r"  # .*", "", str(module))
    return parse(_FLOAT.sub(lambda found: f"{float(found[0]):.4e}", text))


@pytest.mark.parametrize("folder", MODELS + OPERATORS + OLD, ids=name_of)
def test_text_and_json_are_one_program(folder: Path) -> None:
    if folder in LOST:
        with pytest.raises(relay.RelayError, match=LOST[folder]):
            load(folder, "model.json")
        return
    programs = []
    for file in files(folder):
        model = load(folder, file)
        programs.append(rounded(model.program(*arguments(model, folder)).module))
    assert structural_equal(*programs)


def test_a_text_written_by_hand() -> None:
    folder = DATA / "models" / "control_flow"
    model = relay.load((folder / "handwritten.relay").read_text())
    check(folder, model(*arguments(model, folder)), 1e-5)


def test_unknown_dimensions_take_what_is_given_and_compile_once_for_all() -> None:
    folder = DATA / "models" / "dynamic_batch"
    model = load(folder, "model.relay")
    x, w = arguments(model, folder)
    run = meta.vm.compile(
        model, meta.ir.parse_type("float32[n, 4]"), meta.ir.parse_type("float32[3, 4]")
    )
    check(folder, run(x, w), 1e-5)
    np.testing.assert_allclose(run(x[:2], w).numpy(), model(x[:2], w).numpy(), 1e-6)
    with pytest.raises(relay.RelayError, match=r"Tensor\[\(\?, 4\), float32\]"):
        model(meta.zeros((5, 3)), w)


def test_a_saved_program_needs_no_relay(tmp_path: Path) -> None:
    folder = DATA / "models" / "onnx_params"
    model = load(folder, "model.json")
    args = arguments(model, folder)
    meta.vm.compile(model, *args).save(tmp_path / "compiled")
    check(folder, meta.vm.load(tmp_path / "compiled")(*args), 1e-4)
    assert list(model.state())[:2] == ["0.weight", "0.bias"]
