"""What exported libraries compute, beside the models run eagerly on torch."""

from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from tests.vm.export.native import Library
from tests.vm.export.networks import CASES


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [t for part in value for t in leaves(part)]
    return [value.torch()]


def expected(network: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    with meta.dialect.only("torch"):
        return leaves(network(*map(meta.array, inputs)))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long
def test_results_are_those_of_the_model(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    network = case.network()
    library, _ = case.compiled(network).export(tmp_path / "model.so")
    native = Library(library)
    dims = native.dims()
    for extent in (1, 3, 18, 16, 2) if dims else (1, 1):
        most = min([most for _, most in case.dims.values() if most] or [extent])
        extents = {name: min(extent, most) + i for i, name in enumerate(dims)}
        inputs = case.tensors(**extents)
        wanted = expected(network, inputs)
        found = native.run(inputs, **extents)
        for result, right in zip(found, wanted, strict=True):
            torch.testing.assert_close(
                result, right, rtol=case.tolerance, atol=case.tolerance, equal_nan=True
            )
    native.destroy()
