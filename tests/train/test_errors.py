"""What `fit` refuses, before anything runs where that can be told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError
from meta.model import Linear, Model
from meta.optim import SGD, with_sgd
from meta.train import Accuracy, EarlyStop, ReduceOnPlateau
from tests.train.problem import held_out, loss, network, train


class Untraced(Model):
    """A model whose forward is not traced."""

    def forward(self, x: Any) -> Any:
        return x


def no_number(scores: Any, labels: Any) -> Any:
    return scores


ERRORS: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "no model": (lambda p: train(Linear, steps=1), ArgumentError, "meta.Model"),
    "untraced": (lambda p: train(Untraced(), steps=1), ArgumentError, "not traced"),
    "no loss": (lambda p: train(loss=3, steps=1), ArgumentError, "the loss is a function"),
    "eager optimizer": (
        lambda p: train(optimizer=3, steps=1), ArgumentError, "what a with_<name>",
    ),
    "other optimizer": (
        lambda p: train(optimizer=lambda m: m, steps=1), ArgumentError, "no.* make a training step",
    ),
    "an optimizer": (
        lambda p: train(optimizer=SGD(network().parameters()), steps=1),
        ArgumentError, "for loops of one's own",
    ),
    "an optimizer's class": (
        lambda p: train(optimizer=SGD, steps=1), ArgumentError, "for loops of one's own",
    ),
    "optimizer not called": (
        lambda p: train(optimizer=with_sgd, steps=1), ArgumentError, "the numbers come first",
    ),
    "a loss of torch": (
        lambda p: train(loss=torch.nn.CrossEntropyLoss(), steps=1),
        ArgumentError, "meta.cross_entropy, or another function",
    ),
    "metrics in a list": (
        lambda p: train(steps=1, eval_data=held_out(), metrics=[Accuracy()]),
        ArgumentError, "given by name",
    ),
    "one callback": (
        lambda p: train(steps=1, callbacks=print), ArgumentError, r"a list: \[callback\]",
    ),
    "another name": (
        lambda p: train(data=[({"input": x}, y) for x, y in held_out()], steps=1),
        ArgumentError, r"cannot be called like this: missing .*'x'",
    ),
    "no length": (lambda p: train(), ArgumentError, "one of steps= and epochs="),
    "two lengths": (lambda p: train(steps=1, epochs=1), ArgumentError, "steps=1, epochs=1"),
    "steps": (lambda p: train(steps=0), ArgumentError, "steps is a count"),
    "epochs": (lambda p: train(epochs=1.5), ArgumentError, "epochs is a count"),
    "log_every": (lambda p: train(steps=1, log_every=True), ArgumentError, "log_every is a count"),
    "eval_every alone": (
        lambda p: train(steps=1, eval_every=1), ArgumentError, "nothing without eval_data",
    ),
    "average alone": (
        lambda p: train(steps=1, eval_average=False), ArgumentError, "nothing without eval_data",
    ),
    "no average": (
        lambda p: train(steps=1, eval_average=True, eval_data=held_out()),
        ArgumentError, "keeps no average",
    ),
    "metrics alone": (
        lambda p: train(steps=1, metrics={}), ArgumentError, "nothing without eval_data",
    ),
    "checkpoint_every alone": (
        lambda p: train(steps=1, checkpoint_every=1), ArgumentError, "without checkpoint",
    ),
    "keep": (lambda p: train(steps=1, checkpoint=p, keep=0), ArgumentError, "keep is a number"),
    "a file": (lambda p: train(steps=1, checkpoint=__file__), ArgumentError, "cannot be kept"),
    "executor": (lambda p: train(steps=1, executor="gpu"), ArgumentError, "no such executor"),
    "seed": (lambda p: train(steps=1, seed=-1), ArgumentError, "a seed is an int"),
    "schedule": (lambda p: train(steps=1, schedule=0.1), ArgumentError, "a schedule is a function"),
    "callback": (
        lambda p: train(steps=1, callbacks=[print]), ArgumentError, "meta.train.Callback",
    ),
    "early stop alone": (
        lambda p: train(steps=1, callbacks=[EarlyStop(1)]), ArgumentError, "needs an evaluation",
    ),
    "plateau alone": (
        lambda p: train(steps=1, callbacks=[ReduceOnPlateau()]),
        ArgumentError, "ReduceOnPlateau needs an evaluation",
    ),
    "plateau and schedule": (
        lambda p: train(
            steps=1, eval_data=held_out(), callbacks=[ReduceOnPlateau()], schedule=lambda i: 1.0
        ),
        ArgumentError, "both set the learning rate",
    ),
    "plateau, factor": (lambda p: ReduceOnPlateau(1.0), ArgumentError, r"factor in \(0, 1\)"),
    "plateau, cooldown": (
        lambda p: ReduceOnPlateau(cooldown=-1), ArgumentError, "cooldown >= 0",
    ),
    "early stop, metric": (
        lambda p: train(steps=1, eval_data=held_out(), callbacks=[EarlyStop(1, "f1")]),
        ArgumentError, "a metric that the evaluation has not",
    ),
    "patience": (lambda p: EarlyStop(0), ArgumentError, "out of range"),
    "metric named loss": (
        lambda p: train(steps=1, eval_data=held_out(), metrics={"loss": loss}),
        ArgumentError, "these names are taken",
    ),
    "loss is no number": (
        lambda p: train(loss=no_number, steps=1), ArgumentError, "the loss is one number",
    ),
    "metric is no number": (
        lambda p: train(steps=1, eval_data=held_out(), metrics={"scores": no_number}),
        ArgumentError, "the metric 'scores' is one number",
    ),
    "iterator, epochs": (
        lambda p: train(data=iter([]), epochs=2), ArgumentError, "gives its batches once",
    ),
    "iterator, evaluation": (
        lambda p: train(eval_data=iter([]), steps=1), ArgumentError, "eval_data is an iterator",
    ),
    "evaluation without data": (
        lambda p: train(eval_data=[], steps=1), ArgumentError, "the data have no batch",
    ),
    "a log of a kind": (lambda p: train(steps=1, log="log.txt"), ArgumentError, ".csv or .jsonl"),
    "a log nowhere": (
        lambda p: train(steps=1, log=p / "no" / "log.csv"), ArgumentError, "no such folder",
    ),
    "no log": (lambda p: train(steps=1, log=3), ArgumentError, "this is no log"),
    "device": (lambda p: train(steps=1, device="tpu"), meta.errors.DeviceError, "unknown device"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, tmp_path: Path) -> None:
    call, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        call(tmp_path)
