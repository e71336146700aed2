"""Random operators: the generator's published vectors, and where keys come from."""

import pytest
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError, TypeInferError
from meta.dialect import only
from meta.model import trace
from meta.runtime import random
from meta.runtime.philox import philox4x32
from meta.vm import compile

# Random123's kat_vectors, "philox4x32 10": counter, key, result.
ONES = 0xFFFFFFFF
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_gives_the_published_words(counter, key, words) -> None:
    assert philox4x32(counter, key, lambda *w: w) == words
    tensors = tuple(torch.tensor(c) for c in counter)
    assert philox4x32(tensors, key, lambda *w: tuple(map(int, w))) == words


def masks(run, x):
    random.seed(11)
    return [run(x)[1].numpy().copy() for _ in range(3)]


def test_a_seed_reproduces_a_run_on_every_backend_and_executor() -> None:
    x = meta.array(torch.ones(50, 40))
    expected = masks(op.dropout_train, x)
    assert any((expected[0] != m).any() for m in expected[1:]), "every run draws a key of its own"
    for dialect in ("torch", "tvm"):
        with only(dialect):
            found = masks(op.dropout_train, x)
            model = trace(lambda x: op.dropout_train(x))
            compiled = compile(model, x)
            assert all((a == b).all() for a, b in zip(found, expected, strict=True))
            assert all((a == b).all() for a, b in zip(masks(compiled, x), expected, strict=True))


def test_dropout_drops_its_share() -> None:
    random.seed(5)
    x = meta.array(torch.ones(200, 500))
    for p in (0.1, 0.5, 0.9):
        y, mask, _ = op.dropout_train(x, p)
        kept = mask.torch().float().mean().item()
        assert abs(kept - (1 - p)) < 5 * (p * (1 - p) / 100_000) ** 0.5
        assert abs(y.torch().mean().item() - 1) < 0.05


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_p_is_a_probability(p) -> None:
    with pytest.raises(TypeInferError, match="probability"):
        op.dropout_train(meta.array(torch.ones(3)), p)


@pytest.mark.parametrize("dialect", ["torch", "tvm"])
def test_a_key_is_what_a_call_without_one_would_draw(dialect: str) -> None:
    x = meta.array(torch.ones(20, 20))
    with_key = trace(lambda x: op.dropout_train(x, 0.5, op.random_key())[1])
    with only(dialect):
        random.seed(11)
        expected = [op.dropout_train(x)[1].torch() for _ in range(3)]
        for run in (with_key.function, with_key, compile(with_key, x)):
            random.seed(11)
            for mask in expected:
                assert torch.equal(run(x).torch(), mask)


def test_keys_are_drawn_again_as_they_were_noted() -> None:
    with random.record_keys() as outer:
        first = random.default.key()
        with random.record_keys() as inner:
            second = random.default.key()
    assert (outer, inner) == ([first, second], [second])
    state = random.default.state()
    with random.replay_keys(outer), random.record_keys() as again:
        assert [random.default.key(), random.default.key()] == outer
    assert again == outer and random.default.state() == state


@pytest.mark.parametrize("count", [0, 2])
def test_other_draws_than_were_noted_are_an_error(count: int) -> None:
    with pytest.raises(ArgumentError, match="draws other random numbers"):  # noqa: SIM117
        with random.replay_keys([1]):
            for _ in range(count):
                random.default.key()
