"""What the converters of `meta/frontend/relay/converters/matrix.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

F, Z = np.float32, np.int32
PLACES = np.array([[0, 1], [2, 3], [1, 0]], Z)
VALUES = np.array([1.5, -2.0, 4.0], F)


def written(shape, places, values, default=0.0):
    whole = np.full(shape, default, np.asarray(values).dtype)
    for place, value in zip(places, np.broadcast_to(values, len(places)), strict=True):
        whole[tuple(np.atleast_1d(place))] = value
    return whole


def _case(name, places, values, default, shape, dynamic=False):
    args = (places, values, default)
    expected = written(shape, np.atleast_1d(places), values, default)
    if dynamic:
        return Case(name, (*args, np.array(shape)), expected, constants=(3,))
    return Case(name, args, expected, {"output_shape": shape}, label=f"{np.shape(places)}")


COORDINATES = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 2, 3]])


def reshaped(places, shape, target):
    """By the numbers of the elements."""
    count = np.prod(shape)
    extents = np.array(np.empty(count).reshape(tuple(target)).shape)
    numbers = np.ravel_multi_index(tuple(places.T), tuple(shape))
    found = np.stack(np.unravel_index(numbers, tuple(extents)), 1)
    return found.astype(places.dtype), extents.astype(shape.dtype)


ROWS = np.array([[0, 1], [0, 3], [2, 0], [3, 1]])

CASES = [
    _case("sparse_to_dense", PLACES, VALUES, F(0), (3, 4)),
    _case("sparse_to_dense", PLACES, VALUES, F(7), (3, 5)),
    _case("sparse_to_dense", PLACES[:, 1], VALUES, F(-1), (5,)),
    _case("sparse_to_dense", Z(3), F(2), F(9), (5,)),
    _case("sparse_to_dense", PLACES, Z(5), Z(1), (3, 4)),
    Case(
        "sparse_to_dense",
        (PLACES, VALUES),
        written((3, 4), PLACES, VALUES),
        {"output_shape": (3, 4)},
    ),
    Case(
        "sparse_to_dense",
        (PLACES, VALUES, F(0)),
        attrs={"output_shape": (3, 4, 5)},
        refused="do not name places",
    ),
    _case("dyn.sparse_to_dense", PLACES, VALUES, F(2), (3, 4), dynamic=True),
    *[
        Case("sparse_reshape", (COORDINATES, np.array([2, 3, 4]), np.array(target)), reshaped)
        for target in ([6, -1], [-1], [2, 2, 6], [4, -1, 3])
    ],
    Case(
        "sparse_reshape",
        (COORDINATES.astype(Z), np.array([2, 3, 4], Z), np.array([-1, 4], Z)),
        reshaped,
        constants=(1, 2),
    ),
    *[
        Case(
            "sparse_fill_empty_rows",
            (ROWS, values, np.array([5, 6]), default),
            (
                np.array([[0, 1], [0, 3], [1, 0], [2, 0], [3, 1], [4, 0]]),
                np.array([1, 2, 10, 3, 4, 10], result),
                np.array([0, 1, 0, 0, 1]),
            ),
            dialects=("torch",),
        )
        for values, default, result in (
            (np.array([1, 2, 3, 4], Z), np.array([10], Z), np.int64),
            (np.array([1, 2, 3, 4], F), F(10), F),
        )
    ],
]
