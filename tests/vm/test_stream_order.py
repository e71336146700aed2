"""Runs of a program from several streams follow each other: here with streams that stand in."""

from __future__ import annotations

import pytest
import torch

from meta.base.device import Device
from meta.vm.run import workspace
from meta.vm.run.workspace import StreamOrder


class Stream:
    def __init__(self, handle: int, log: list[tuple[int, int]]) -> None:
        self.handle, self._log = handle, log

    def wait_stream(self, other: Stream) -> None:
        self._log.append((self.handle, other.handle))


@pytest.mark.parametrize(
    ("handles", "waits"),
    [
        ([1, 1, 1], []),
        ([1, 2, 2], [(2, 1)]),
        ([1, 2, 1, 3], [(2, 1), (1, 2), (3, 1)]),
        ([1, -5, 1, 2], [(2, 1)]),  # recorded by the caller
    ],
)
def test_another_stream_waits(
    handles: list[int], waits: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[int, int]] = []
    order = StreamOrder(Device("cuda:0"))
    for handle in handles:
        stream = Stream(handle, log)
        monkeypatch.setattr(workspace, "_raw", lambda _, h=handle: h)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, s=stream: s)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda h=handle: h < 0)
        order()
    assert log == waits
