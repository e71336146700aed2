"""The interface of exported libraries: what they say of themselves, refuse, need, and cost."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import meta
from meta.model import trace
from tests.vm.export.native import (
    ARGUMENT,
    BUSY,
    DIMENSION,
    INDEX,
    OK,
    PROCESSOR,
    Dim,
    Library,
)
from tests.vm.export.networks import CASES
from tests.vm.export.test_results import expected

ISOLATED = """
import ctypes, sys, time
path, shape, values = sys.argv[1], sys.argv[2], sys.argv[3]
begin = time.perf_counter()
library = ctypes.CDLL(path)
library.meta_model_error.restype = ctypes.c_char_p
model = ctypes.c_void_p()
assert library.meta_model_create(1, ctypes.byref(model)) == 0, library.meta_model_error(None)
start = time.perf_counter() - begin
count, results = map(int, shape.split(","))
given = (ctypes.c_float * count).from_buffer_copy(open(values, "rb").read())
found = (ctypes.c_float * results)()
inputs = (ctypes.c_void_p * 1)(ctypes.addressof(given))
outputs = (ctypes.c_void_p * 1)(ctypes.addressof(found))
assert library.meta_model_run(model, inputs, outputs, None) == 0, library.meta_model_error(model)
open(values, "wb").write(bytes(found))
assert not {"numpy", "torch", "tvm", "meta"} & set(sys.modules), sys.modules
memory = dict(line.split(":", 1) for line in open("/proc/self/status"))
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(start, memory["VmRSS"].split()[0], memory["RssFile"].split()[0], *loaded)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(scope="module")
def convolutions(folder: Path) -> Path:
    case = CASES["convolutions"]
    return case.compiled(case.network()).export(folder / "convolutions.so")[0]


@pytest.fixture(scope="module")
def rows(folder: Path) -> Path:
    """Any number of rows of integers, which index a table of 50."""
    case = CASES["texts"]
    return case.compiled(case.network()).export(folder / "rows.so")[0]


def test_a_process_without_packages_runs_it(convolutions: Path, tmp_path: Path) -> None:
    case = CASES["convolutions"]
    (images,) = case.tensors()
    (wanted,) = expected(case.network(), [images])
    (tmp_path / "values").write_bytes(images.numpy().tobytes())
    sizes = f"{images.numel()},{wanted.numel()}"
    command = [sys.executable, "-S", "-I", "-c", ISOLATED, str(convolutions), sizes]
    ran = subprocess.run(
        [*command, str(tmp_path / "values")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = np.frombuffer((tmp_path / "values").read_bytes(), np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=2e-5, atol=2e-5)
    start, resident, _, *libraries = ran.stdout.split()
    print(f"start {float(start) * 1e3:.2f} ms, resident {int(resident) / 1024:.1f} MB")
    assert float(start) < 0.2  # 20 ms on a machine that does nothing else
    assert int(resident) < 40 << 10
    assert not [name for name in libraries if "-packages" in name]


def test_it_needs_the_c_library_alone(convolutions: Path) -> None:
    if shutil.which("ldd") is None:
        pytest.skip("there is no ldd")
    ran = subprocess.run(["ldd", str(convolutions)], capture_output=True, text=True, check=True)
    names = {
        line.split()[0].rpartition("/")[2].partition(".so")[0]
        for line in ran.stdout.split("\n")
        if line
    }
    assert names <= {"linux-vdso", "libc", "libm", "libpthread", "ld-linux-x86-64"}, ran.stdout


def test_it_exports_its_interface_alone(convolutions: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    command = ["nm", "-D", "--defined-only", str(convolutions)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(line.split()[-1].startswith("meta_model_") for line in ran.stdout.splitlines())


def test_it_says_what_it_is(rows: Path) -> None:
    library = Library(rows)
    assert library.function("abi")() == 1
    assert library.function("name")() == b"Encoder.forward"
    assert [i.text() for i in library.described("input")] == ["words: int64[n, 5]"]
    assert [i.text() for i in library.described("output")] == ["output: float32[n, 5, 16]"]
    (dim,) = (library.function("dimension")(i).contents for i in range(1))
    assert isinstance(dim, Dim)
    assert (dim.name, dim.least, dim.most) == (b"n", 1, 3)
    for kind in ("input", "output", "dimension"):
        assert not library.function(kind)(1) and not library.function(kind)(-1)
    numbers = (ctypes.c_int64 * 1)(2)
    assert library.function("input_bytes")(0, numbers) == 2 * 5 * 8
    assert library.function("output_bytes")(0, numbers) == 2 * 5 * 16 * 4
    assert library.function("output_bytes")(1, numbers) == -1
    assert library.function("output_bytes")(0, (ctypes.c_int64 * 1)(4)) == -1
    assert library.function("output_bytes")(0, None) == -1
    header = rows.with_suffix(".h").read_text()
    assert "input words: int64[n, 5]" in header and "dimension n: 1 to 3" in header


def test_wrong_arguments_are_statuses_with_a_text(rows: Path) -> None:
    library = Library(rows)
    words = torch.ones(2, 5, dtype=torch.int64)
    result = torch.empty(2, 5, 16)
    two = (ctypes.c_int64 * 1)(2)
    wrong = words.clone()
    wrong[1, 3] = 50
    cases = [
        (ARGUMENT, "input words is NULL", [None], [result], two),
        (ARGUMENT, "output output is NULL", [words], [None], two),
        (ARGUMENT, "input words is not aligned", [words.data_ptr() + 4], [result], two),
        (ARGUMENT, "output output overlaps input words", [words], [words.data_ptr() + 64], two),
        (ARGUMENT, "dims is NULL", [words], [result], None),
        (DIMENSION, "dimension n is out of range: 0", [words], [result], (ctypes.c_int64 * 1)(0)),
        (DIMENSION, "dimension n is out of range: 4", [words], [result], (ctypes.c_int64 * 1)(4)),
        (INDEX, "expected 0 <= index < 50: 50 at element 8", [wrong], [result], two),
    ]
    for status, text, inputs, outputs, dims in cases:
        assert library.launch(inputs, outputs, dims) == status, text
        assert text in library.error(library.model)
        assert library.launch([words], [result], two) == OK  # and it goes on
        assert library.error(library.model) == ""
    run = library.function("run")
    assert run(library.model, None, None, two) == ARGUMENT
    assert run(None, None, None, None) == ARGUMENT
    library.function("destroy")(None)
    library.destroy()


@pytest.mark.parametrize("threads", [0, -1, 1 << 20])
def test_numbers_of_threads_out_of_range_are_refused(rows: Path, threads: int) -> None:
    library, made = Library(rows), ctypes.c_void_p()
    assert library.function("create")(threads, ctypes.byref(made)) == ARGUMENT
    assert made.value is None and str(threads) in library.error(None)
    assert library.function("create")(1, None) == ARGUMENT


@trace
def large(x, y):
    return meta.exp(x) + y, x.sum(axis=1)


@pytest.fixture(scope="module")
def parallel(folder: Path) -> Path:
    """Loops that are worth threads."""
    type_ = meta.ir.parse_type("float32[512, 1024]")
    return meta.vm.compile(large, type_, type_).export(folder / "parallel.so")[0]


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_of_one_model(parallel: Path, threads: int) -> None:
    library = Library(parallel, threads=threads)
    for seed in range(8):
        x, y = torch.randn(2, 512, 1024, generator=torch.Generator().manual_seed(seed)).unbind()
        found = library.run([x, y])
        torch.testing.assert_close(found, [torch.exp(x) + y, x.sum(1)], rtol=1e-4, atol=1e-3)
    library.destroy()


def test_models_of_several_threads_run_at_the_same_time(parallel: Path) -> None:
    library, failures = Library(parallel), []

    def work(seed: int) -> None:
        model = library.create(1 + seed % 2)
        x, y = torch.randn(2, 512, 1024, generator=torch.Generator().manual_seed(seed)).unbind()
        for _ in range(5):
            found, _ = library.run([x, y], model)
            if not torch.allclose(found, torch.exp(x) + y, rtol=1e-4, atol=1e-4):
                failures.append(seed)
        library.function("destroy")(model)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_a_model_runs_one_call_at_a_time(parallel: Path) -> None:
    library = Library(parallel)
    x = torch.zeros(512, 1024)
    outputs = [[torch.empty(512, 1024), torch.empty(512)] for _ in range(2)]
    statuses: list[int] = []

    def work(i: int) -> None:
        statuses.extend(library.launch([x, x], outputs[i]) for _ in range(200))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert set(statuses) <= {OK, BUSY} and OK in statuses
    torch.testing.assert_close(library.run([x, x])[0], torch.ones(512, 1024))


def test_a_processor_without_the_instructions_is_refused(tmp_path: Path) -> None:
    target = '{"kind": "llvm", "mcpu": "x86-64-v2", "mattr": ["+fma4"]}'
    with meta.base.config.override(META_CPU_TARGET=target):
        path, _ = meta.vm.compile(large, *[meta.ones((2, 3))] * 2).export(tmp_path / "model.so")
    library, made = ctypes.CDLL(str(path)), ctypes.c_void_p()
    library.meta_model_error.restype = ctypes.c_char_p
    if "fma4" in Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this processor has them")
    assert library.meta_model_create(1, ctypes.byref(made)) == PROCESSOR
    assert b"has no fma4" in library.meta_model_error(None)


def scaled(times: int):
    return trace(lambda x, y: (x + y) * meta.array([float(times)], device="cpu"))


def test_names_and_sources(tmp_path: Path) -> None:
    """Two models in one process, which C knows by names of their own."""
    x, y = torch.randn(2, 4, 3).unbind()
    found = []
    for name in ("first", "second"):
        run = meta.vm.compile(scaled(len(name)), meta.array(x), meta.array(y))
        path, header = run.export(tmp_path / f"{name}.so", name=name, sources=tmp_path / "sources")
        assert f"int {name}_run({name} *model" in header.read_text()
        found.append(Library(path, name))
    results = [library.run([x, y])[0] for library in found]
    torch.testing.assert_close(results, [(x + y) * 5, (x + y) * 6])
    kept = {p.name for p in (tmp_path / "sources").iterdir()}
    assert {"program.inc", "runtime.c", "weights.bin", "kernels0.o", "second.h"} <= kept


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
    return x.softmax(axis=0)


@trace
def lengths(x):
    return x.softmax(axis=-1)


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
        ("torch.softmax", "extents that are numbers"),
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


def test_control_flow_is_refused(tmp_path: Path) -> None:
    module = meta.ir.parse("""
        func @main(%x: float32[3], %c: bool[]) -> float32[3] {
          %y: float32[3] = if %c {
            %a: float32[3] = exp(%x)
            yield %a
          } else {
            yield %x
          }
          return %y
        }""")
    with pytest.raises(meta.errors.ArgumentError, match="of several ranks: Branch"):
        meta.vm.compile(module).export(tmp_path / "model.so")


def test_arguments_of_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = meta.vm.compile(large, *[meta.ones((2, 3))] * 2)
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
