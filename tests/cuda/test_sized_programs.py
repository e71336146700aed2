"""Programs with symbolic dimensions on a GPU: one of its own for each size, with its graphs."""

from __future__ import annotations

import pytest

import meta
from tests import sized_programs

pytestmark = pytest.mark.cuda


def test_each_size_has_its_own() -> None:
    sized_programs.check("cuda", meta.vm.compile)


def test_sizes_of_torch_compile() -> None:
    sized_programs.check_torch_compile("cuda")


def test_training_of_sizes() -> None:
    sized_programs.check_training("cuda")
