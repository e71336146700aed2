"""Normalisations of equal numbers are zero: what their mean rounds away is not divided by the root
of ``eps``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import op

NUMBERS = np.array([6.7312, -0.1371, 1234.567, 3e-3], "float32")


def filled(value: float) -> Any:
    return meta.array(np.full(4, value), "float32")


NORMS = {
    "layer_norm": lambda x: op.layer_norm.plain(x, None, None),
    "batch_norm": lambda x: op.batch_norm_train(
        x, filled(0), filled(1), filled(1), filled(0), 0.1, 1e-5, 1
    )[0],
    "group_norm": lambda x: op.group_norm(x, 4),
    "instance_norm": lambda x: op.instance_norm(x),
}


@pytest.mark.parametrize("count", [3, 32, 769])
@pytest.mark.parametrize("name", NORMS)
def test_zero(name: str, count: int) -> None:
    x = meta.array(np.repeat(NUMBERS.reshape(1, 4, 1), count, 2))
    with meta.dialect.only("tvm"):
        assert abs(NORMS[name](x).torch()).max() < 1e-6
