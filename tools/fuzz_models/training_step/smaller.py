"""Making a failing training smaller, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tools.fuzz_models.face import smallest
from tools.fuzz_models.training_step.draw import is_sound
from tools.fuzz_models.training_step.program import Program

SIMPLE = {
    "loss": "functional.cross_entropy(y, t)",
    "returns": "result",
    "channels_last": False,
    "dtype": "float32",
    "optimizer": "torch.optim.SGD(p, 0.1)",
    "groups": "all",
}


def minimise(program: Program, fails: Callable[[Program], bool], seconds: float) -> Program:
    """Return the smallest program found for which ``fails`` is true."""
    candidates = (_fewer_rounds, _fewer_layers, _simpler, _fewer_events)
    return smallest(program, fails, candidates, is_sound, seconds)


def _fewer_rounds(program: Program) -> Iterator[Program]:
    rounds = program.rounds
    if len(rounds) > 1:
        for k in range(len(rounds)):
            yield replace(program, rounds=rounds[:k] + rounds[k + 1 :])


def _fewer_layers(program: Program) -> Iterator[Program]:
    layers = program.layers
    for k in range(1, len(layers)):
        yield replace(program, layers=layers[:k] + layers[k + 1 :])


def _simpler(program: Program) -> Iterator[Program]:
    for name, value in SIMPLE.items():
        if getattr(program, name) != value:
            yield replace(program, **{name: value})
    for k in range(len(program.options)):
        yield replace(program, options=program.options[:k] + program.options[k + 1 :])


def _fewer_events(program: Program) -> Iterator[Program]:
    for k, one in enumerate(program.rounds):
        for i in range(len(one.events)):
            fewer = replace(one, events=one.events[:i] + one.events[i + 1 :])
            yield replace(program, rounds=(*program.rounds[:k], fewer, *program.rounds[k + 1 :]))
