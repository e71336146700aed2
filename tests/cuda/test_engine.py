"""Continuous batching on a GPU, where a step hands out the pieces of the one before."""

from __future__ import annotations

import pytest

from meta import language
from tests.language.folders import of_bytes
from tests.language.test_engine import LENGTH, check_beside_alone, finish

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> language.Decoder:
    return language.load(of_bytes(tmp_path_factory.mktemp("mistral"), "mistral"), device="cuda")


@pytest.mark.parametrize("blocks", [None, 10])
@pytest.mark.parametrize("seed", range(2))
def test_a_text_is_what_it_is_alone(
    decoder: language.Decoder, seed: int, blocks: int | None
) -> None:
    engine = language.Engine(decoder, rows=4, length=LENGTH, blocks=blocks, chunk=32)
    assert engine.late
    check_beside_alone(decoder, engine, seed)


def test_a_step_hands_out_the_one_before(decoder: language.Decoder) -> None:
    engine = language.Engine(decoder, rows=2, length=32)
    engine.compile()
    request = engine.add([5, 6], max_new_tokens=3, end_tokens=())
    counts = [len(engine.step()) for _ in range(4)]
    assert counts == [0, 1, 1, 1] and request.reason == "length"
    assert not finish(engine)
