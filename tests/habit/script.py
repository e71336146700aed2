"""Train a residual network on digits: python script.py [--resume] [--folder runs]."""

import argparse
import os
import random

import numpy as np
from sklearn.datasets import load_digits

import meta
import meta.model as nn
from meta.train import Batches


def digits(train, batch_size):
    digits = load_digits()
    part = slice(0, 1280) if train else slice(1280, None)
    images = meta.array(digits.images[part], dtype=meta.float32) / 16
    labels = meta.array(digits.target[part])
    return Batches(images.expand_dims(1), labels, batch_size, shuffle=False)


class ResidualBlock(meta.Model):
    def __init__(self, channels, out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(out)
        self.shortcut = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm(out)
            )

    def forward(self, x):
        y = meta.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return meta.relu(y + self.shortcut(x))


class Net(meta.Model):
    def __init__(self, width=8, num_classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.layer1 = ResidualBlock(width, width)
        self.layer2 = ResidualBlock(width, 2 * width, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(2 * width, num_classes)
        for m in self.models():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        x = self.pool(x).flatten(1)
        return self.fc(self.dropout(x))


def train_one_epoch(model, loader, optimizer, schedule, step, device):
    model.train()
    losses = []
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = meta.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.lr = schedule(step + len(losses))
        optimizer.step(clip_norm=1.0)
        losses.append(loss.item())
    return losses


@meta.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total_loss, confusion = 0.0, meta.zeros((10, 10), dtype=meta.int64)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        total_loss += meta.cross_entropy(logits, labels, reduction="sum").item()
        pairs = labels * 10 + logits.argmax(axis=1)
        confusion += meta.bincount(pairs, minlength=100).reshape(10, 10).cpu()
    correct = confusion.diagonal()
    recall = correct / confusion.sum(axis=1).clip(min=1)
    return total_loss / 517, (correct.sum() / confusion.sum()).item(), recall


def main(arguments=None, initial=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="runs")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args(arguments)

    random.seed(args.seed)
    np.random.seed(args.seed)
    meta.random.seed(args.seed)
    device = "cpu"
    train_loader = digits(train=True, batch_size=128)
    test_loader = digits(train=False, batch_size=256)

    model = Net().to(device)
    if initial is not None:
        model.load_state_dict(initial)
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = meta.optim.AdamW(groups, lr=args.lr)
    factor = meta.optim.schedule.one_cycle(args.epochs * len(train_loader) + 1)
    os.makedirs(args.folder, exist_ok=True)
    path = os.path.join(args.folder, "last.safetensors")
    run = nn.ModuleDict({"model": model, "optimizer": optimizer})
    run.epoch = meta.array(-1)
    history = []
    if args.resume and os.path.exists(path):
        nn.load_weights(run, path)

    for epoch in range(run.epoch.item() + 1, args.epochs):
        step = epoch * len(train_loader)
        losses = train_one_epoch(
            model, train_loader, optimizer, lambda i: args.lr * factor(i), step, device
        )
        loss, accuracy, recall = evaluate(model, test_loader, device)
        rate = optimizer.lr
        print(
            f"epoch {epoch} loss {loss:.4f} acc {accuracy:.2%} worst {recall.min():.2f} {rate:.1e}"
        )
        history.append({"train": losses, "loss": loss, "accuracy": accuracy})
        run.epoch = meta.array(epoch)
        nn.save_weights(run, path)
    return model, history


if __name__ == "__main__":
    main()
