"""Machine code is compiled once, kept on disk, and made into kernels again without Triton."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from meta import op
from meta.base import config, disk_cache
from meta.base.errors import BackendError
from meta.dialect.core import Artifact, OpEnv, Unsupported, compile_together, compiling
from meta.dialect.triton import TritonDialect, build
from meta.dialect.triton.launch import packed, unpacked
from meta.ir.types import TensorType
from tests.conftest import run_python
from tests.dialect.triton import kernels
from tests.dialect.triton.fake_driver import FakeDriver

X = TensorType((3, 50), "float32")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder that is empty, and nothing in memory; Triton's own cache is empty, too."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "of_triton"))
    build.kernels.forget()
    with config.override(META_CACHE_DIR=str(tmp_path)):
        yield tmp_path / "triton"
    build.kernels.forget()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants that are compiled, by the name of the kernel."""
    seen: list[str] = []
    compile_ = build.compiled

    def noting(unit: build.Unit, variant: build.Variant) -> Any:
        seen.append(variant.source.name)
        return compile_(unit, variant)

    monkeypatch.setattr(build, "compiled", noting)
    return seen


def unit_of(dialect: TritonDialect, operator: Any, *types: TensorType, **more: Any) -> build.Unit:
    env = dialect.ops[operator.name].make(kernels.call(operator, *types, **more))
    assert env._deferred is not None
    unit: build.Unit = env._deferred.source.unit
    return unit


def test_both_variants_are_kept_and_found(tested: TritonDialect, folder: Path, compiled: list[str]):
    unit = unit_of(tested, op.relu, X)
    made = build.kernels(unit)
    assert compiled == ["relu", "relu"] and len(made) == 2
    for one in made:
        assert one.code[:4] == b"\x7fELF" and one.name == "relu"
        assert (one.warps, one.ctas, one.shared, one.scratch) == (4, 1, 0, 0)
    ptx = [build.assembled(unit, v).asm["ptx"] for v in unit.variants]
    assert all("sm_90a" in text for text in ptx)
    build.kernels.forget()
    assert build.kernels(unit_of(tested, op.relu, X)) == made and len(compiled) == 2
    # Another size with the same properties is the same code.
    same = unit_of(tested, op.relu, TensorType((5, 30), "float32"))
    assert build.kernels(same) == made and len(compiled) == 2
    other = unit_of(tested, op.relu, TensorType((3, 64), "float32"))
    assert other != unit and len(build.kernels(other)) == 2 and len(compiled) == 4


@pytest.mark.parametrize("damage", ["truncated", "poisoned", "foreign", "other", "writable"])
def test_a_file_that_is_not_in_order_counts_as_none(
    tested: TritonDialect, folder: Path, compiled: list[str], damage: str
):
    unit = unit_of(tested, op.relu, X)
    made = build.kernels(unit)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(content[:-100])
    elif damage == "poisoned":
        file.write_bytes(content[:-4] + b"evil")
    elif damage == "foreign":
        disk_cache.store("triton", unit.key, b'[{"name": "relu"}]\n123')
    elif damage == "other":
        disk_cache.store("triton", unit.key, packed(made[:1]))
    else:
        file.chmod(0o666)
    build.kernels.forget()
    assert build.kernels(unit) == made and len(compiled) == 4


def test_records_of_machine_code_that_are_none():
    binary = build.Binary(b"code", "name", 4, 1, 16, 0, 1)
    content = packed([binary, binary])
    assert unpacked(content) == (binary, binary)
    damaged = [content[:-1], content + b"x", b"", b"\n", b"[]\n", b"{}\n", b"[1]\n", b"[" * 9**5]
    assert all(unpacked(one) is None for one in damaged)
    for change in ({"bytes": -4}, {"warps": "4"}, {"name": 1}, {"more": 1}):
        record = json.loads(packed([binary]).partition(b"\n")[0])
        assert unpacked(json.dumps([{**record[0], **change}]).encode() + b"\ncode") is None


def test_functions_that_are_called_decide_the_code(tested: TritonDialect, folder: Path):
    key = unit_of(tested, op.relu, X).key
    relu, positive = kernels.relu, kernels.positive
    source = positive.src
    try:
        positive._unsafe_update_src(source.replace("v > 0", "v >= 0"))
        relu.hash = None
        assert unit_of(tested, op.relu, X).key != key
    finally:
        positive._unsafe_update_src(source)
        relu.hash = None
    assert unit_of(tested, op.relu, X).key == key


def test_kernels_of_a_program_are_compiled_on_threads(
    tested: TritonDialect, folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
):
    fake = FakeDriver(monkeypatch)
    calls = [kernels.call(op.relu, TensorType((n,), "float32")) for n in (3, 16)]
    with config.override(META_COMPILE_THREADS=2):
        envs = [tested.ops["relu"].make(one) for one in calls]
        compile_together(envs)
        assert len(compiled) == 4
        with compiling():
            made = tested.ops["add"].make(kernels.call(op.add, X, X))
        made.run(*[torch.zeros(3, 50)] * 3)
    assert compiled[4:] == ["add", "add"] and len(fake.launched) == 1
    assert len(fake.loaded) == 6


def test_the_source_is_known_for_people(tested: TritonDialect) -> None:
    (source,) = tested.ops["relu"].make(kernels.call(op.relu, X)).source_text().items()
    assert source[0] == ".py" and "@triton.jit" in source[1] and "tl.load" in source[1]


def test_a_kernel_that_does_not_compile_is_named(tested: TritonDialect, folder: Path):
    @triton.jit
    def wrong(x, out, numel, BLOCK: tl.constexpr):
        tl.store(out + tl.arange(0, BLOCK), tl.load(x + tl.arange(0, 7)))

    tested.kernel(op.tanh, grid=(1,), configs=[{"BLOCK": 16}])(wrong)
    env = tested.ops["tanh"].make(kernels.call(op.tanh, X))
    with pytest.raises(BackendError) as caught:
        compile_together([env])
    text = str(caught.value)
    for part in ("'wrong'", "sm_90", "tl.arange(0, 7)", "test_build.py", "tanh(x=float32[3, 50])"):
        assert part in text


def test_a_tensor_of_many_elements(tested: TritonDialect, folder: Path):
    huge = TensorType((3, 2**30), "float16")
    with pytest.raises(Unsupported, match="3221225472 elements, and offsets of 32 bits"):
        tested.ops["relu"].make(kernels.call(op.relu, huge))

    @triton.jit
    def wide(x, out, numel, index_dtype: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(index_dtype) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < numel), mask=at < numel)

    tested.kernel(op.copy, grid=kernels.flat, configs=[{"BLOCK": 1024}])(wide)
    unit = unit_of(tested, op.copy, huge)
    assert unit.variants[0].types["numel"] == "i64"
    assert unit.variants[0].constants["index_dtype"] == tl.int64
    assert "setp.lt.s64" in build.assembled(unit, unit.variants[0]).asm["ptx"]
    small = unit_of(tested, op.copy, X)
    assert small.variants[0].constants["index_dtype"] == tl.int32
    rows = unit_of(tested, op.softmax, TensorType((2**20, 4096), "float16"), axis=1)
    assert rows.variants[0].types["x_stride_0"] == "i64"


RESTORED = """
import json, sys
sys.modules["triton"] = None  # as where it is not installed
from pathlib import Path
import pytest
import torch
from meta.dialect.core import Artifact
from meta.dialect.triton import triton_dialect
sys.path.insert(0, sys.argv[1])
from tests.dialect.triton.fake_driver import FakeDriver
fake = FakeDriver(pytest.MonkeyPatch())
made = triton_dialect.restore(Artifact(Path(sys.argv[2]), json.loads(sys.argv[3])))
made.run(torch.zeros(3, 50), torch.empty(3, 50))
made.run(torch.zeros(151)[1:].view(3, 50), torch.empty(3, 50))
assert [one.read(2, "i") for one in fake.launched] == [150, 150]
print([one.grid for one in fake.launched], [code for _, code, *_ in fake.loaded][0][:4])
"""


def saved(dialect: TritonDialect, folder: Path) -> tuple[OpEnv, Path, str]:
    """Return a kernel, its file as in the folder of a saved program, and its record."""
    env = dialect.ops["relu"].make(kernels.call(op.relu, X))
    compile_together([env])
    assert env.artifact is not None
    copy = folder / env.artifact.file.name
    folder.mkdir()
    shutil.copyfile(env.artifact.file, copy)
    copy.chmod(0o644)
    return env, copy, json.dumps(env.artifact.record)


@pytest.mark.slow
def test_a_saved_kernel_runs_where_triton_is_not_installed(
    tested: TritonDialect, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    FakeDriver(monkeypatch)
    _, copy, record = saved(tested, tmp_path / "saved")
    printed = run_python("-c", RESTORED, Path(__file__).parents[3], copy, record)
    assert printed.strip() == "[(3, 1, 1), (3, 1, 1)] b'\\x7fELF'"


def test_a_saved_kernel_is_made_again(
    tested: TritonDialect, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fake = FakeDriver(monkeypatch)
    env, copy, record = saved(tested, tmp_path / "saved")
    made = tested.restore(Artifact(copy, json.loads(record)))
    made.run(torch.zeros(3, 50), torch.empty(3, 50))
    assert fake.launched[0].grid == (3, 1, 1)
    for wrong in ({}, {"launch": {}, "device": 0}, {**json.loads(record), "device": "0"}):
        with pytest.raises(ValueError, match="record"):
            tested.restore(Artifact(copy, wrong))
    copy.write_bytes(copy.read_bytes()[:-1])
    with pytest.raises(ValueError, match="does not hold machine code"):
        tested.restore(Artifact(copy, json.loads(record)))
    copy.chmod(0o666)
    with pytest.raises(ValueError, match="others may write to it"):
        tested.restore(Artifact(copy, json.loads(record)))
    assert env.artifact is not None
    env.artifact.file.unlink()  # the cache may lose it
    compile_together([env])
    assert env.artifact is not None and env.artifact.file.is_file()
