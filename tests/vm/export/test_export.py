"""`Executable.export`: its arguments, what it takes from a program, and what it refuses."""

import os
from pathlib import Path

import pytest
import torch

import meta
from meta.model import trace
from tests.vm.export.native import Library
from tests.vm.export.networks import CASES
from tests.vm.export.test_results import expected


@trace
def added(x, y):
    return x + y


def scaled(times: int):
    return trace(lambda x, y: (x + y) * meta.array([float(times)], device="cpu"))


def test_names_and_sources(tmp_path: Path) -> None:
    """Two models in one process, which C knows by names of their own."""
    x, y = torch.randn(2, 4, 3).unbind()
    found = []
    for name in ("first", "second"):
        run = meta.vm.compile(scaled(len(name)), meta.array(x), meta.array(y))
        path, header = run.export(
            tmp_path / f"the {name}.so", name=name, sources=tmp_path / "sources"
        )
        assert f"int {name}_run({name} *model" in header.read_text()
        found.append(Library(path, name))
    results = [library.run([x, y])[0] for library in found]
    torch.testing.assert_close(results, [(x + y) * 5, (x + y) * 6])
    kept = {p.name for p in (tmp_path / "sources").iterdir()}
    assert {"program.inc", "runtime.c", "weights.bin", "kernels0.o", "the second.h"} <= kept


def test_a_loaded_program(tmp_path: Path) -> None:
    """A folder has what kernels are made of; it is not compiled again."""
    case = CASES["perceptron"]
    network, inputs = case.network(), case.tensors()
    with meta.dialect.only("tvm"):
        case.compiled(network).save(tmp_path / "generated")
    case.compiled(network).save(tmp_path / "torch")
    path, _ = meta.vm.load(tmp_path / "generated").export(tmp_path / "model.so")
    for found, wanted in zip(Library(path).run(inputs), expected(network, inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)
    with pytest.raises(meta.errors.ArgumentError, match="save one that was compiled within"):
        meta.vm.load(tmp_path / "torch").export(tmp_path / "other.so")
    assert not (tmp_path / "other.so").exists()


def test_weights_are_those_at_the_time_of_the_export(tmp_path: Path) -> None:
    case = CASES["convolutions"]
    network, inputs = case.network(), case.tensors()
    run = case.compiled(network)
    run(*map(meta.array, inputs))
    network.norm.running_var.update(network.norm.running_var * 3)
    wanted = expected(network, inputs)
    path, _ = run.export(tmp_path / "model.so")
    network.norm.running_var.update(network.norm.running_var * 3)
    torch.testing.assert_close(Library(path).run(inputs), wanted, rtol=2e-5, atol=2e-5)


class Trained(meta.Model):
    def build(self):
        self.drop, self.norm = meta.model.Dropout(0.5), meta.model.BatchNorm(3)

    @trace
    def forward(self, x):
        return self.norm(self.drop(x))


@trace
def inverse(x):
    return meta.linalg.inv(meta.exp(x))


@trace
def across(x):
    return meta.matmul(x, meta.ones((4, 2), device="cpu")).softmax(axis=0)


@trace
def lengths(x):
    return meta.matmul(x, meta.exp(x).T)


@trace
def spectrum(x):
    return meta.fft.fft(x)


REFUSED = {
    "writes and random numbers": (
        Trained,
        "float32[4, 3, 2, 2]",
        ("writes to %norm.running_mean", "dropout_train", "it draws random numbers"),
    ),
    "no kernel": (lambda: inverse, "float32[4, 4]", ("torch.linalg_inv(float32[4, 4])", __file__)),
    "across rows": (lambda: across, "float32[n, 4]", ("needs several rows of n at once",)),
    "another dimension": (
        lambda: lengths,
        "float32[3, n]",
        ("torch.dense", "extents that are numbers"),
    ),
    "complex": (lambda: spectrum, "float32[8]", ("output is complex64[8]", "fft_c2c")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_one_error(tmp_path: Path, name: str) -> None:
    make, type_, said = REFUSED[name]
    run = meta.vm.compile(make(), meta.ir.parse_type(type_))
    with pytest.raises(meta.errors.ArgumentError) as caught:
        run.export(tmp_path / "model.so")
    assert all(text in str(caught.value) for text in said), caught.value
    assert not list(tmp_path.iterdir())


PROGRAMS = {
    "of several ranks: Branch": """
        func @main(%x: float32[3], %c: bool[]) -> float32[3] {
          %y: float32[3] = if %c {
            %a: float32[3] = exp(%x)
            yield %a
          } else {
            yield %x
          }
          return %y
        }""",
    # Rows are apart, but each is multiplied by their number.
    "computes with the number of rows, n": """
        func @main(%x: float32[n, 4]) -> float32[n, 4] {
          %y: float32[n, 4] = multiply(%x, x2=dim n)
          return %y
        }""",
}


@pytest.mark.parametrize("said", PROGRAMS)
def test_programs_that_are_refused(tmp_path: Path, said: str) -> None:
    with pytest.raises(meta.errors.ArgumentError, match=said):
        meta.vm.compile(meta.ir.parse(PROGRAMS[said])).export(tmp_path / "model.so")


def test_arguments_of_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = meta.vm.compile(added, *[meta.ones((2, 3))] * 2)
    for options in ({"name": "a-b"}, {"name": "1"}):
        with pytest.raises(meta.errors.ArgumentError, match="a name of C"):
            run.export(tmp_path / "model.so", **options)
    with pytest.raises(meta.errors.ArgumentError, match="not named as its header"):
        run.export(tmp_path / "model.h")
    with pytest.raises(meta.errors.FileError):
        run.export(tmp_path / "missing" / "model.so")
    with (
        meta.base.config.override(META_CC="no-such-compiler"),
        pytest.raises(meta.errors.ArgumentError, match="there is none"),
    ):
        run.export(tmp_path / "model.so")
    with (
        meta.base.config.override(META_CC="false"),
        pytest.raises(meta.errors.BackendError, match="cannot make the library"),
    ):
        run.export(tmp_path / "model.so")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(meta.errors.ArgumentError, match="cc, gcc or clang"):
        run.export(tmp_path / "model.so")
