"""Progress bars: on a terminal only, unless META_PROGRESS says otherwise; and where there are
some.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meta
from meta.base import config, progress
from meta.base.errors import ArgumentError
from meta.base.progress import bar
from meta.frontend import relay
from meta.train import Batches, fit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    monkeypatch.setattr("sys.stderr", stream)
    with bar(3, "work", **options) as shown:
        for _ in range(3):
            shown.update()
    return stream.getvalue()


def test_a_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.override(META_PROGRESS="auto"):
        assert "work" in written(Terminal(), monkeypatch)
        assert written(io.StringIO(), monkeypatch) == ""
    with config.override(META_PROGRESS="on"):
        assert "work" in written(io.StringIO(), monkeypatch)
    with config.override(META_PROGRESS="off"):
        assert written(Terminal(), monkeypatch) == ""


def test_what_is_quick_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.override(META_PROGRESS="on"):
        assert written(io.StringIO(), monkeypatch, delay=60.0) == ""


def test_other_words_are_errors() -> None:
    with config.override(META_PROGRESS="perhaps"), pytest.raises(ArgumentError, match="PROGRESS"):
        bar(3, "work")


class Recorded:
    """Stands for tqdm: notes what is shown, and how far each came."""

    shown: dict[str, list[int]]

    def __init__(self, total: int | None, desc: str, initial: int, **options: Any) -> None:
        self.n = initial
        self._steps = self.shown.setdefault(desc, [])
        self._steps.append(0)
        self._last = len(self._steps) - 1

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        self.n += count
        self._steps[self._last] += count

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        assert text


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[int]]]:
    Recorded.shown = {}
    monkeypatch.setattr(progress, "tqdm", Recorded)
    yield Recorded.shown


def test_compiling_shows_passes_choices_and_kernels(
    shown: dict[str, list[int]], tmp_path: Path
) -> None:
    with config.override(META_CACHE_DIR=str(tmp_path)), meta.dialect.only("tvm"):
        run = meta.vm.compile(meta.model.trace(lambda x: meta.exp(x) * 3.0), meta.array([1.0, 2.0]))
    assert sum(shown["passes"]) == len(run.history) - 1
    assert sum(shown["choosing kernels"]) == 2 and sum(shown["kernels"]) == 1


def test_training_and_evaluation(shown: dict[str, list[int]]) -> None:
    x, y = np.ones((6, 2), "float32"), np.zeros((6, 1), "float32")
    data = Batches(x, y, 2, shuffle=False)
    optimizer = meta.optim.with_sgd(lr=0.01)
    with meta.dialect.only("torch"):
        fit(meta.model.Linear(2, 1), meta.mse_loss, data, optimizer, epochs=2, eval_data=data)
    assert sum(shown["training"]) == 6 and sum(shown["evaluation"]) == 6


def test_importing(shown: dict[str, list[int]]) -> None:
    body = "\n".join(f"  %{i + 1} = nn.relu(%{i});" for i in range(3000))
    text = (
        '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2), float32]) {\n  %0 = nn.relu(%x);\n'
        f"{body}\n  nn.relu(%3000)\n}}\n"
    )
    model = relay.load(text)
    assert sum(shown["reading Relay"]) > len(text) / 2
    with meta.dialect.only("torch"):
        model(meta.array([1.0, -1.0]))
    assert sum(shown["converting"]) > 1000
