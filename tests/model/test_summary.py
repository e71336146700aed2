"""`Model.summary`: counts, tied arrays, text."""

from __future__ import annotations

import meta
from meta.model import BatchNorm, Linear, Model, ReLU, Sequential


class Tied(Model):
    def build(self) -> None:
        self.first = Sequential(Linear(3, 3), ReLU(), BatchNorm(3))
        self.again = Linear(3, 3, bias=False)
        self.again.weight = self.first[0].weight
        self.scales = [meta.ones((2,))]


def test_counts() -> None:
    summary = Tied().summary()
    found = {row.path: (row.kind, row.parameters, row.other) for row in summary.rows}
    assert found == {
        "": ("Tied", 0, 2),
        "first": ("Sequential", 0, 0),
        "first.0": ("Linear", 12, 0),
        "first.1": ("ReLU", 0, 0),
        "first.2": ("BatchNorm", 6, 6),
        "again": ("Linear", 0, 0),
    }
    assert (summary.parameters, summary.other, summary.nbytes) == (18, 8, 26 * 4)


def test_text() -> None:
    model = Sequential(Linear(1000, 20), ReLU())
    lines = [
        "path     model       arrays                        parameters",
        "-" * 61,
        "(whole)  Sequential",
        "0        Linear      weight [20, 1000], bias [20]      20,020",
        "1        ReLU",
        "-" * 61,
        "20,020 parameters, 0 other numbers, 80,080 B",
    ]
    assert str(model.summary()).splitlines() == lines
