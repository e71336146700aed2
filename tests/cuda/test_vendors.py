"""A vendor's kernels and configurations on a GPU: the folder of `test_triton.py`, for CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import meta
from meta.base import config
from meta.base.device import Device
from meta.dialect import only, vendors
from meta.dialect.triton import TritonDialect
from tests.dialect.triton import kernels
from tests.dialect.vendors.test_triton import FILES, OPS
from tests.registered import remove_dialects

pytestmark = pytest.mark.cuda
GPU = Device("cuda:0")


@pytest.fixture
def tested() -> Iterator[TritonDialect]:
    dialect = TritonDialect("tested")
    kernels.register(dialect)
    yield dialect
    remove_dialects(dialect)


@pytest.fixture
def acme(tmp_path: Path, tested: TritonDialect) -> Iterator[Path]:
    """A vendor of CUDA, with an architecture folder for this GPU."""
    major, _ = torch.cuda.get_device_capability()
    described = (
        "from meta.dialect.vendors import Vendor\n"
        'vendor = Vendor("acme", "cuda", dialect="tested", query_command="nvidia-smi",\n'
        f'                architectures={{"{major}": "this"}})\n'
    )
    files = {
        **OPS,
        "__init__.py": described,
        "this/tune_configs.yaml": FILES["tune_configs.yaml"],
        "this/__init__.py": "",
    }
    for name, text in files.items():
        file = tmp_path / "acme" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = text.splitlines()
        indent = min((len(s) - len(s.lstrip()) for s in lines if s.strip()), default=0)
        file.write_text("\n".join(line[indent:] for line in lines) + "\n", "utf-8")
    vendors.add(tmp_path / "acme")
    yield tmp_path / "acme"
    vendors.remove("acme")


def x() -> meta.ndarray:
    return meta.array(torch.randn(33, 70, device="cuda"))


def test_the_vendors_kernels_run_and_are_compiled_by_triton(acme: Path) -> None:
    found = vendors.active("cuda")
    assert found is not None and found.name == "acme", "torch has its device"
    given = x()
    with only("tested"):
        softmax, silu = meta.softmax(given), meta.silu(given)
        explained = str(meta.explain(meta.silu, given))
    assert "kernel of the vendor acme" in explained
    torch.testing.assert_close(softmax.torch(), torch.softmax(given.torch(), -1))
    torch.testing.assert_close(silu.torch(), torch.nn.functional.silu(given.torch()))


def test_generic_kernels_are_launched_as_the_architecture_states(acme: Path) -> None:
    given = x()
    with only("tested"):
        explained = meta.explain(meta.relu, given)
        record = next(r for r in explained.records() if r["dialect"] == "tested")
        assert record["configured_by"] == "architecture acme/this"
        assert torch.equal(meta.relu(given).torch(), given.torch().relu())
    candidate = next(c for c in explained if c.dialect_op.dialect.name == "tested")
    assert candidate.env is not None and candidate.env.configs is not None
    (other,) = candidate.env.configs.listed()
    made = candidate.env.configs.made(other)
    out = torch.empty_like(given.torch())
    made.run(given.torch(), out)
    assert torch.equal(out, given.torch().relu())


def test_a_program_with_a_vendors_kernel_is_right_under_cuda_graphs(acme: Path) -> None:
    given = x()
    traced = meta.model.trace(lambda a: meta.silu(meta.softmax(a)))
    with only("tested"):
        compiled = meta.vm.compile(traced, given)
        expected = torch.nn.functional.silu(torch.softmax(given.torch(), -1))
        for _ in range(4):
            torch.testing.assert_close(compiled(given).torch(), expected)
    assert compiled.kernels() == {"tested.softmax": 1, "tested.silu": 1}


def test_of_nobody_in_force_nothing_is_used(acme: Path) -> None:
    with config.override(META_VENDOR="none"), only("tested"):
        explained = meta.explain(meta.relu, x())
        assert "vendor" not in str(explained)
