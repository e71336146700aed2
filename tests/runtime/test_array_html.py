"""What a notebook shows of an array: all of a small one, the corners of a large one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.dtype import DTYPES, TO_TORCH
from meta.base.errors import TraceError
from meta.runtime import array_export

CELL = re.compile(r"<td[^>]*>(?:<span[^>]*>)?([^<]*)")


def cells(html: str) -> list[list[str]]:
    """Return the texts of the cells of each row, numbers of rows left out."""
    rows = re.findall(r"<tr>(.*?)</tr>", html.partition("<tbody>")[2])
    return [CELL.findall(row)[1:] for row in rows]


def test_a_matrix_is_shown_with_its_type_and_values() -> None:
    x = meta.array([[1.0, 2.5], [float("nan"), -1e30]], name="weights")
    x.requires_grad = True
    html = x._repr_html_()
    assert "weights:" in html and "float32[2, 2]" in html
    assert "on cpu, 16 B, requires a gradient" in html
    assert cells(html) == [["1", "2.5"], ["nan", "-1e+30"]]


def test_scalars_vectors_and_nothing() -> None:
    assert ">3.5</div>" in meta.array(3.5)._repr_html_()
    vector = meta.array([1, 2, 3])._repr_html_()
    assert CELL.findall(vector) == ["1", "2", "3"]
    for shape in ((0,), (0, 3), (2, 0, 3)):
        html = meta.array(np.zeros(shape))._repr_html_()
        assert "no elements" in html and "<td" not in html


def test_a_large_matrix_shows_its_corners() -> None:
    values = np.arange(1_000_000).reshape(1000, 1000)
    found = cells(meta.array(values)._repr_html_())
    edge = [0, 1, 2, 997, 998, 999]
    numbers = [[int(c) for c in row if c.isdigit()] for row in found]
    assert [row for row in numbers if row] == values[np.ix_(edge, edge)].tolist()
    assert sum("…" in row for row in found) == 6


@pytest.mark.parametrize("shape", [(10**7,), (3000, 3000), (50, 40, 30, 20), (1,) * 30, (2,) * 20])
def test_only_what_is_shown_is_copied(shape: tuple[int, ...], monkeypatch: Any) -> None:
    copied: list[int] = []
    host = array_export._to_lists

    def counting(piece: torch.Tensor) -> Any:
        copied.append(piece.numel())
        return host(piece)

    monkeypatch.setattr(array_export, "_to_lists", counting)
    html = meta.array(torch.zeros(1).expand(shape))._repr_html_()
    assert 0 < sum(copied) <= 5 * array_export.MAX_EXTENT**2
    assert len(html) < 40_000


def test_a_stack_shows_its_first_and_last_matrices() -> None:
    html = meta.array(np.arange(7 * 2 * 3).reshape(7, 2, 3))._repr_html_()
    assert re.findall(r">(\[\d\])<", html) == ["[0]", "[1]", "[5]", "[6]"]
    assert "… 3 more matrices …" in html
    whole = meta.array(np.arange(2 * 2 * 2 * 2).reshape(2, 2, 2, 2))._repr_html_()
    assert re.findall(r">(\[\d, \d\])<", whole) == ["[0, 0]", "[0, 1]", "[1, 0]", "[1, 1]"]


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype(dtype: str) -> None:
    html = meta.ndarray(torch.ones(2).to(TO_TORCH[dtype]))._repr_html_()
    expected = {"bool": "True"}.get(dtype, "1+0j" if dtype.startswith("complex") else "1")
    assert CELL.findall(html) == [expected, expected] and f"{dtype}[2]" in html


def test_strides_and_names_do_not_matter() -> None:
    x = meta.ndarray(torch.arange(6.0).reshape(2, 3).T, name="<b>")
    html = x._repr_html_()
    assert cells(html) == [["0", "3"], ["1", "4"], ["2", "5"]]
    assert "&lt;b&gt;:" in html and "<b>" not in html


def test_an_array_of_a_model_that_is_traced_is_not_read() -> None:
    class Shown(meta.Model):
        def build(self) -> None:
            self.w = meta.array([1.0])

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            self.w._repr_html_()
            return x * self.w

    with pytest.raises(TraceError):
        meta.vm.compile(Shown(), meta.array([2.0]))
