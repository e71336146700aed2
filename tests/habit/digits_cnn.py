"""A small convolutional network for digits, with early stopping and the best weights kept."""

import copy

from sklearn.datasets import load_digits

import meta
import meta.model as nn
from meta.optim import with_sgd
from meta.optim.schedule import cosine
from meta.train import Accuracy, Batches, Callback, EarlyStop, evaluate, fit

EPOCHS, BATCH, PATIENCE = 6, 64, 2


class CNN(meta.Model):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    @meta.model.trace
    def forward(self, x):
        x = meta.max_pool2d(meta.relu(self.norm1(self.conv1(x))), 2)
        x = meta.max_pool2d(meta.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def load():
    digits = load_digits()
    x = meta.array(digits.images / 16, dtype=meta.float32).expand_dims(1)
    y = meta.array(digits.target)
    train = Batches(x[:1400], y[:1400], BATCH, shuffle=False, drop_last=True)
    test = Batches(x[1400:], y[1400:], 397, shuffle=False)
    return train, test


class KeepBest(Callback):
    def __init__(self):
        self.best = float("inf")

    def on_evaluation(self, run, metrics):
        print(f"epoch {run.epoch}: loss {metrics['loss']:.3f} accuracy {metrics['accuracy']:.3f}")
        if metrics["loss"] < self.best:
            self.best, self.state_dict = metrics["loss"], copy.deepcopy(run.model.state_dict())


def train(model, data, held_out):
    keep = KeepBest()
    record = fit(
        model,
        meta.cross_entropy,
        data,
        with_sgd(lr=0.05, momentum=0.9, weight_decay=1e-4),
        epochs=EPOCHS,
        schedule=cosine(EPOCHS * len(data)),
        eval_data=held_out,
        metrics={"accuracy": Accuracy()},
        callbacks=[keep, EarlyStop(patience=PATIENCE)],
    )
    model.load_state_dict(keep.state_dict)
    return record.losses


def main(model):
    data, held_out = load()
    losses = train(model, data, held_out)
    found = evaluate(model, meta.cross_entropy, held_out, metrics={"accuracy": Accuracy()})
    print(f"best: loss {found['loss']:.3f} accuracy {found['accuracy']:.3f}")
    return losses, found["loss"], found["accuracy"]


if __name__ == "__main__":
    meta.random.seed(0)
    main(CNN())
