"""Programs with symbolic dimensions on a GPU: one of its own for each size, with its graphs."""

from __future__ import annotations

import pytest

import meta
from meta.base import config
from meta.base.errors import CaptureError
from meta.ir import parse_type
from meta.model import Linear, Sequential
from tests import sized_programs

pytestmark = pytest.mark.cuda


def test_each_size_has_its_own() -> None:
    sized_programs.check("cuda", meta.vm.compile)


def test_sizes_of_torch_compile() -> None:
    sized_programs.check_torch_compile("cuda")


def test_training_of_sizes() -> None:
    sized_programs.check_training("cuda")


def test_graphs_that_are_required() -> None:
    model = Sequential(*(Linear(64, 64) for _ in range(6))).to(device="cuda").eval()
    type_ = parse_type("float32[n, 64]")
    run = meta.vm.compile(model, type_, dims={"n": (1, 9)}, device="cuda", cuda_graph=True)
    x = meta.random.normal((3, 64)).to(device="cuda")
    first = [run(x).torch() for _ in range(3)]
    for found in first:
        assert (found - model(x).torch()).abs().max() < 1e-5
    with config.override(META_SIZES=0), pytest.raises(CaptureError):
        run(x[:2])
    assert run.sizes == [{"n": 3}]
