"""Files of tensors: every dtype comes back as it was written, complex128 too, which the format
does not have.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

import meta
from meta.base.dtype import TO_TORCH
from meta.base.errors import FormatError
from meta.runtime.tensor_file import read_tensors, write_tensors

Z = torch.complex(torch.arange(6.0).double(), -torch.arange(6.0).double()).reshape(2, 3)
GIVEN = {
    **{dtype: torch.arange(3).to(kind) for dtype, kind in TO_TORCH.items()},
    "a matrix": Z,
    "one number": Z[0, 1],
    "nothing": Z[:0],
    "transposed": Z.mT,
    "the same memory": Z,
    "a name\nof two lines": Z + 1,
    "a conjugate": Z.conj(),
    "a negative": Z.conj().imag,
    "a narrow conjugate": Z.to(torch.complex64).conj(),
}


def test_tensors_come_back(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t.safetensors", GIVEN)
    found = read_tensors(tmp_path / "t.safetensors")
    assert found.keys() == GIVEN.keys()
    for name, expected in GIVEN.items():
        assert found[name].dtype is expected.dtype, name
        assert torch.equal(found[name], expected.resolve_conj().resolve_neg()), name


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(3), torch.ones(2, 2), torch.ones(3).double(), torch.tensor(1.0).double(), None],
)
def test_a_file_that_says_wrongly_that_a_tensor_is_complex(
    tmp_path: Path, tensor: torch.Tensor | None
) -> None:
    tensors = {"y": torch.ones(1)} if tensor is None else {"x": tensor}
    path = tmp_path / "t.safetensors"
    safetensors.torch.save_file(tensors, path, metadata={"complex128 x": ""})
    with pytest.raises(FormatError, match="is complex, which it is not"):
        read_tensors(path)


def test_a_program_with_a_complex_constant_is_kept_and_saved(tmp_path: Path) -> None:
    constant = meta.array(Z)

    @meta.model.trace
    def model(x):
        return x * constant

    x = meta.array(Z + 1)
    exe = meta.vm.compile(model, x)
    exe.save(tmp_path / "saved")
    for one in (exe, meta.vm.load(tmp_path / "saved")):
        assert torch.equal(one(x).torch(), Z * (Z + 1))
