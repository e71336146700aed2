"""Parts of arrays on a mesh: joined they are the whole, whatever the splits."""

from itertools import product

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, DistributedError
from meta.runtime.placement import Placement, Split

SPLITS = {
    "whole": (),
    "rows": (Split("tp", 2, 0),),
    "columns": (Split("tp", 3, 1),),
    "columns of three arrays": (Split("tp", 2, 1, joined=3),),
    "columns of arrays that differ": (
        Split("tp", 2, 0, joined=(1, 1)),
        Split("dp", 1, 1, (4, 1, 1)),
    ),
    "elements": (Split("dp", 4),),
    "columns, then elements": (Split("tp", 3, 1), Split("dp", 5)),
    "both axes": (Split("tp", 2, 0), Split("dp", 3, 1)),
}


@pytest.mark.parametrize("name", SPLITS)
def test_joined_parts_are_the_whole(name):
    whole = torch.arange(4 * 6 * 2.0).reshape(4, 6, 2)
    placement = Placement((4, 6, 2), SPLITS[name])
    axes = [s.over for s in placement.splits]
    parts = {}
    for ranks in product(*(range(s.size) for s in placement.splits)):
        part = placement.part(whole, dict(zip(axes, ranks, strict=True)))
        assert tuple(part.shape) == placement.local
        parts[ranks] = part
    assert torch.equal(placement.join(lambda at: parts[tuple(at[a] for a in axes)]), whole)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5, 3)])
def test_elements_are_split_whatever_the_shape(shape):
    whole = torch.randn(shape)
    placement = Placement(shape, (Split("dp", 4),))
    parts = [placement.part(whole, {"dp": r}) for r in range(4)]
    assert torch.equal(placement.join(lambda at: parts[at["dp"]]), whole)


def test_each_of_joined_arrays_is_split():
    whole = torch.arange(12).reshape(2, 6)
    placement = Placement((2, 6), (Split("tp", 2, 1, joined=3),))
    assert placement.part(whole, {"tp": 1}).tolist() == [[1, 3, 5], [7, 9, 11]]
    placement = Placement((1, 12), (Split("tp", 2, 1, joined=(4, 1, 1)),))
    assert placement.part(torch.arange(12)[None], {"tp": 1}).tolist() == [[4, 5, 6, 7, 9, 11]]
    with pytest.raises(DistributedError, match="a multiple of 4"):
        _ = Placement((2, 6), (Split("tp", 2, 1, joined=2),)).local


def test_an_uneven_axis_is_refused():
    with pytest.raises(DistributedError, match="axis 1 is not split evenly over 'tp'"):
        _ = Placement((2, 5), (Split("tp", 2, 1),)).local
    with pytest.raises(DistributedError, match="split over 'tp' already"):
        Placement((4,), (Split("tp", 2, 0),)).then(Split("tp", 2))


def test_an_array_has_a_placement():
    x = meta.ones((2, 3))
    assert x.placement == Placement((2, 3))
    x.placement = Placement((4, 3), (Split("tp", 2, 0),))
    assert x.placement.shape == (4, 3)
    with pytest.raises(ArgumentError, match="another shape"):
        x.placement = Placement((4, 3))
