"""Tests of what is said of a program that cannot be converted."""

from __future__ import annotations

import pytest

import meta
from meta.frontend.relay.errors import RelayError
from tests.frontend.relay.convert.running import model_of


def test_everything_is_listed_at_once() -> None:
    text = """def @g(%x: float32) { nn.relux(%x) }
def @main(%x: float32) {
  let %a = memory.kill(@g(%x));
  (nn.relux(nn.relux(%x)), meta[relay.Constant][3], nn.relu(%x, weird=1))
}"""
    with pytest.raises(RelayError, match="6 calls of this program are not supported") as caught:
        model_of(text)
    found = str(caught.value)
    assert "nn.relux, 3 times, first at 2:23: there is no converter" in found
    assert "nn.relu, nn.prelu" in found
    assert "memory.kill, once, first at 4:12: memory is planned in it by TVM" in found
    assert "nn.relu, once, first at 5:53: it has no attribute 'weird'" in found
    assert "meta[relay.Constant][3]" in found


def test_functions_that_main_does_not_reach_do_not_count() -> None:
    text = """
    def @dead(%x: float32) { memory.kill(@lost(%x)) }
    def @deader(%x: float32) { @dead(%x) }
    def @double(%x: float32) { %x * 2f }
    def @main(%x: float32) { @double(%x) }"""
    assert list(model_of(text).program(meta.array(3.0)).module.functions) == ["main"]
