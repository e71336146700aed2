"""The interface of exported libraries: what they say of themselves, refuse, need, and cost."""

import ctypes
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


@trace
def gathered(x, places):
    return meta.gather_nd(x, places)


@trace
def labelled(scores, labels):
    return meta.cross_entropy(scores, labels)


@trace
def pooled(x, boxes):
    return meta.roi_pool(x, boxes, (2, 2), 1.0)


@trace
def divided(x, y):
    return x // y


def whole(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


SCORES, TABLE = torch.linspace(0, 1, 12).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
INDEXED = {
    "by columns": (
        gathered,
        TABLE,
        whole([2, 0], [3, 1]),
        whole([2, 0], [3, 4]),
        "index < 4: 4 at",
    ),
    "by rows": (gathered, TABLE, whole([2, 0], [3, 1]), whole([3, 0], [3, 1]), "index < 3: 3 at"),
    "floats": (
        pooled,
        SCORES.reshape(1, 1, 3, 4),
        torch.tensor([[0.0, 0, 0, 2, 2]]),
        torch.tensor([[1.0, 0, 0, 2, 2]]),
        "index < 1: 1 at element 0",
    ),
    "labels": (labelled, SCORES, whole(1, -100, 3), whole(1, -99, 3), "-99 at element 1"),
    "divisors": (divided, whole(5, 7), whole(2, -2), whole(2, 0), "0 at element 1"),
    "bytes": (
        divided,
        whole(5, 7, dtype=torch.uint8),
        whole(2, 200, dtype=torch.uint8),
        whole(0, 1, dtype=torch.uint8),
        "0 at element 0",
    ),
}


@pytest.mark.parametrize("name", INDEXED)
def test_elements_that_index_nothing_are_found(tmp_path: Path, name: str) -> None:
    function, x, right, wrong, text = INDEXED[name]
    run = meta.vm.compile(function, meta.array(x), meta.array(right))
    library = Library(run.export(tmp_path / "model.so")[0])
    wanted = expected(function, [x, right])
    torch.testing.assert_close(library.run([x, right]), wanted)
    with pytest.raises(meta.errors.MetaError):
        expected(function, [x, wrong])
    results = [torch.empty_like(t) for t in wanted]
    assert library.launch([x, wrong], results) == INDEX
    assert text in library.error(library.model), library.error(library.model)


@trace
def cached(keys, values, key, value, positions):
    meta.cache_update(keys, values, key, value, positions)
    return keys * 2, keys


def test_inputs_that_are_written(tmp_path: Path) -> None:
    """Keys and values of two tokens go to their slots, in the caller's memory."""
    caches = [torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, 4, 2)]
    tokens = [torch.ones(1, 2, 1, 2), torch.full((1, 2, 1, 2), 3.0), torch.tensor([[2, 0]])]
    run = meta.vm.compile(cached, *map(meta.array, [*caches, *tokens]))
    library = Library(run.export(tmp_path / "model.so")[0])
    assert [i.written for i in library.described("input")] == [1, 1, 0, 0, 0]
    results = expected(cached, [*caches, *tokens])
    torch.testing.assert_close(library.run([*caches, *tokens]), results)
    torch.testing.assert_close(caches[0], results[1])
    assert caches[1][0, 0, :, 0].tolist() == [3, 0, 3, 0]
    twice = [caches[0], caches[0], *tokens]
    assert library.launch(twice, [torch.empty_like(t) for t in results]) == ARGUMENT
    assert "input values overlaps input keys" in library.error(library.model)


def test_extents_that_no_memory_has(tmp_path: Path) -> None:
    case = CASES["symbolic"]
    library = Library(case.compiled(case.network()).export(tmp_path / "model.so")[0])
    x = torch.zeros(4)
    most = (ctypes.c_int64 * 2)(2**31 - 1, 2**31 - 1)
    assert library.launch([x, x], [x, x, x], most) == DIMENSION
    assert "is too large" in library.error(library.model)
    assert library.function("output_bytes")(0, most) == -1
    beyond = (ctypes.c_int64 * 2)(2**31, 1)
    assert library.launch([x, x], [x, x, x], beyond) == DIMENSION
