"""Saved programs on other machines: without a compiler, read-only, shared, at odd paths."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, FileError, FormatError
from meta.dialect.core import preference
from meta.dialect.torch import onednn
from meta.ir import parse_type
from meta.model import trace
from meta.op.core import tree
from meta.runtime.ndarray import ndarray
from meta.vm import load
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler import kernels
from meta.vm.run import link
from tests.conftest import run_python

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def kernels_of_both() -> Iterator[None]:
    with meta.dialect.only("torch", "tvm"):
        yield


def array(*shape: int) -> meta.ndarray:
    return meta.array(torch.arange(float(np.prod(shape))).reshape(shape))


@trace
def scaled(x: Any) -> Any:
    return meta.softmax(x * 2.0), meta.tanh(x) * 0.5


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "a program"
    with meta.dialect.only("torch", "tvm"):
        meta.vm.compile(scaled, array(2, 3)).save(folder)
    return folder


WITHOUT_TVM = """
import sys
sys.modules["tvm"] = None  # cannot be imported
import meta
exe = meta.vm.load(sys.argv[1])
print(exe(meta.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))[0].numpy().tolist())
try:
    meta.vm.load(sys.argv[1], rebuild=True)
except meta.errors.MetaError as error:
    print(error)
"""


def test_without_tvm(saved: Path, tmp_path: Path) -> None:
    for path in (saved, *saved.rglob("*")):
        path.chmod(path.stat().st_mode & 0o555)
    try:
        printed = run_python("-c", WITHOUT_TVM, saved, META_CACHE_DIR=str(tmp_path))
    finally:
        for path in (saved, *saved.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
    values, said = printed.split("\n", 1)
    assert values == str(scaled(array(2, 3))[0].numpy().tolist())
    assert "the package apache-tvm is not installed" in said


@pytest.mark.parametrize(("umask", "expected"), [(0o077, "600"), (0o022, "644"), (0o002, "644")])
def test_who_may_read_it(umask: int, expected: str, tmp_path: Path) -> None:
    exe = meta.vm.compile(scaled, array(2, 3))
    before = os.umask(umask)
    try:
        exe.save(tmp_path / "program")
    finally:
        os.umask(before)
    (kernels,) = {oct(p.stat().st_mode)[-3:] for p in (tmp_path / "program/kernels").iterdir()}
    assert kernels == expected
    assert oct((tmp_path / "program").stat().st_mode)[-3:] == expected.replace("6", "7").replace(
        "4", "5"
    )
    load(tmp_path / "program")


def test_kernels_that_others_may_write(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    meta.vm.compile(scaled, array(2, 3)).save(folder)
    for path in (folder / "kernels").iterdir():
        path.chmod(0o664)
    with pytest.raises(FormatError, match="others may write to it") as caught:
        load(folder)
    assert "rebuild=True" in str(caught.value)
    assert load(folder, rebuild=True)(array(2, 3))


def test_another_program_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    meta.vm.compile(scaled, array(2, 3)).save(folder)
    first = load(folder)

    @trace
    def other(x: Any) -> Any:
        return meta.exp(x)

    meta.vm.compile(other, array(4)).save(folder)
    assert "softmax" in str(first.module) and "exp" in str(load(folder).module)
    assert torch.allclose(first(array(2, 3))[0].torch(), scaled(array(2, 3))[0].torch())


def test_kernels_that_are_gone(tmp_path: Path) -> None:
    meta.vm.compile(scaled, array(2, 3)).save(tmp_path / "first")
    exe = load(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    assert exe(array(2, 3)) and "softmax" in str(exe.module)
    with pytest.raises(ArgumentError, match="no longer on disk"):
        exe.save(tmp_path / "second")
    assert not list(tmp_path.iterdir())


def test_a_cache_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled again, and the folder is whole; also those for all extents."""
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path / "cache"))
    dims = {"n": (1, 64)}
    made = [
        meta.vm.compile(scaled, array(2, 7)),
        meta.vm.compile(scaled, parse_type("float32[n, 5]"), dims=dims),
    ]
    shutil.rmtree(tmp_path / "cache")
    for i, exe in enumerate(made):
        exe.save(tmp_path / str(i))
        assert list((tmp_path / str(i) / "kernels").iterdir())
    shutil.rmtree(tmp_path / "cache")
    for i, shape in enumerate(((2, 7), (6, 5))):
        x = array(*shape)
        found, expected = load(tmp_path / str(i))(x)[0], scaled(x)[0]
        assert torch.allclose(found.torch(), expected.torch())


def test_places_that_hold_something_else(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("...")
    with pytest.raises(ArgumentError, match="something else"):
        load(saved).save(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    load(saved).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and load(tmp_path / "empty")


def test_constants_of_all_kinds(tmp_path: Path) -> None:
    mask = meta.array(torch.tensor([True, False, True]))
    half = meta.array(torch.tensor([1.5, -2.0, float("nan")]).bfloat16())
    large = meta.array(np.array([2**63 + 5, 1], dtype="uint64"))
    empty = meta.array(torch.zeros(0, 3))

    @trace
    def mixed(x: Any) -> Any:
        return (
            meta.where(mask, x, float("-inf")),
            meta.astype(x, "bfloat16") * half,
            large,
            meta.concat((empty, x), 0),
            empty,
        )

    exe = meta.vm.compile(mixed, array(2, 3))
    exe.save(tmp_path / "program")
    expected, _ = tree.flatten(exe(array(2, 3)))
    found, _ = tree.flatten(load(tmp_path / "program")(array(2, 3)))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert bytes(one.torch().flatten().view(torch.uint8)) == bytes(
            other.torch().flatten().view(torch.uint8)
        )


@pytest.mark.parametrize("types", ["float32[2, 3]", "float32[n, 3]"])
def test_saved_again_it_has_its_kernels(types: str, tmp_path: Path) -> None:
    meta.vm.compile(scaled, meta.ir.parse_type(types)).save(tmp_path / "first")
    load(tmp_path / "first").save(tmp_path / "second")
    first, second = (
        sorted(p.name for p in (tmp_path / name / "kernels").iterdir())
        for name in ("first", "second")
    )
    assert first == second != []


def test_saved_again_it_is_no_larger(tmp_path: Path) -> None:
    table = array(1000)
    exe = meta.vm.compile(trace(lambda x: meta.sum(x * table)), array(1))
    exe.save(tmp_path / "first")
    load(tmp_path / "first").save(tmp_path / "second")
    for name in ("constants.safetensors", "program.txt", "code.json"):
        assert len((tmp_path / "first" / name).read_bytes()) == len(
            (tmp_path / "second" / name).read_bytes()
        )


def test_parameters_that_share_memory(tmp_path: Path) -> None:
    values = torch.ones(3, 2)

    class Tied(meta.Model):
        def build(self) -> None:
            self.a = meta.model.parameter(ndarray(values))
            self.b = meta.model.parameter(ndarray(values))

        @trace
        def forward(self, x: Any) -> Any:
            return meta.matmul(x, self.a) + meta.matmul(x, self.b)

    model = Tied()
    meta.vm.compile(model.eval(), array(2, 3)).save(tmp_path / "read")
    model.train()
    step = meta.optim.with_sgd(0.1, 0.9)(model)
    exe = meta.vm.compile(step, array(2, 2), array(2, 3))
    with pytest.raises(ArgumentError, match="share memory"):
        exe.save(tmp_path / "written")


def test_what_is_remembered_of_extents_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "REMEMBERED", 2)
    monkeypatch.setattr(link, "REMEMBERED", 2)
    exe = meta.vm.compile(scaled, meta.ir.parse_type("float32[n, 3]"))
    for n in (1, 2, 3, 1):
        expected = scaled(array(n, 3))
        for one, other in zip(exe(array(n, 3)), expected, strict=True):
            assert torch.allclose(one.torch(), other.torch())
    runs = [env.run for env in exe.envs]
    sizes = [r.plan_of for r in runs if isinstance(r, kernels.ByExtents)]
    sizes += [r.makers_for for r in runs if isinstance(r, kernels.ForAllExtents)]
    if isinstance(exe._linked.run, link.ByExtents):
        sizes.append(exe._linked.run._linked)
    assert sizes and all(cached.cache_info().currsize == 2 for cached in sizes)


def test_many_writers_of_one_folder(tmp_path: Path) -> None:
    exe, folder = meta.vm.compile(scaled, array(2, 3)), tmp_path / "program"

    def write(_: int) -> None:
        for _ in range(10):
            exe.save(folder)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert load(folder)(array(2, 3))
    assert [p.name for p in tmp_path.iterdir()] == ["program"]


def test_what_was_there_stays_if_the_new_one_cannot_be_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exe, folder = meta.vm.compile(scaled, array(2, 3)), tmp_path / "program"
    exe.save(folder)
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if source.name.endswith(".part"):
            raise PermissionError(errno.EACCES, "Permission denied")
        rename(source, target)

    with monkeypatch.context() as m, pytest.raises(FileError, match="Permission denied"):
        m.setattr(os, "rename", refuse)
        exe.save(folder)
    assert load(folder)(array(2, 3))
    assert [p.name for p in tmp_path.iterdir()] == ["program"]


@trace
def products(x: Any, w: Any, b: Any) -> Any:
    return meta.matmul(x, w), meta.gelu(meta.bias_add(meta.dense(x, w), b))


@pytest.mark.parametrize("here", [False, True])
def test_a_processor_on_which_another_library_is_faster(
    here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(3)
    arrays = [meta.array(torch.randn(s, generator=generator)) for s in [(8, 8), (8, 8), (8,)]]
    with meta.dialect.only("torch"):
        preference.forget()
        monkeypatch.setattr(onednn, "is_large", lambda _: here)
        executable = meta.vm.compile(products, *arrays)
        executable.save(tmp_path / "program")
        expected = [y.numpy() for y in executable(*arrays)]
        chosen = {
            i.fills
            for i in executable.code.functions["main"].instructions()
            if isinstance(i, bc.Invoke)
        }
        preference.forget()
        monkeypatch.setattr(onednn, "is_large", lambda _: not here)
        elsewhere = load(tmp_path / "program")
        for y, z in zip(elsewhere(*arrays), expected, strict=True):
            np.testing.assert_allclose(y.numpy(), z, rtol=1e-5, atol=1e-5)
    preference.forget()  # what the answers above decided
    assert (False in chosen) == here  # a kernel that returns its result
