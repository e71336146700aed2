"""Train a residual network on digits: python script.py [--resume] [--folder runs]."""

import argparse
import os
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, train):
        digits = load_digits()
        part = slice(0, 1280) if train else slice(1280, None)
        self.images = torch.from_numpy(digits.images[part]).float() / 16
        self.labels = torch.from_numpy(digits.target[part])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].unsqueeze(0), self.labels[index]


class ResidualBlock(nn.Module):
    def __init__(self, channels, out, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class Net(nn.Module):
    def __init__(self, width=8, num_classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(inplace=True))
        self.layer1 = ResidualBlock(width, width)
        self.layer2 = ResidualBlock(width, 2 * width, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(2 * width, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        x = torch.flatten(self.pool(x), 1)
        return self.fc(self.dropout(x))


def train_one_epoch(model, loader, optimizer, scheduler, device):
    model.train()
    losses = []
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total_loss, confusion = 0.0, torch.zeros(10, 10, dtype=torch.int64)
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        total_loss += F.cross_entropy(logits, labels, reduction="sum").item()
        pairs = labels * 10 + logits.argmax(dim=1)
        confusion += torch.bincount(pairs, minlength=100).reshape(10, 10).cpu()
    correct = confusion.diagonal()
    recall = correct / confusion.sum(dim=1).clamp(min=1)
    return total_loss / len(loader.dataset), (correct.sum() / confusion.sum()).item(), recall


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
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(Digits(train=True), batch_size=128)
    test_loader = DataLoader(Digits(train=False), batch_size=256)

    model = Net().to(device)
    if initial is not None:
        model.load_state_dict(initial)
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, args.epochs * len(train_loader) + 1, cycle_momentum=False
    )
    os.makedirs(args.folder, exist_ok=True)
    path = os.path.join(args.folder, "last.pt")
    start, history = 0, []
    if args.resume and os.path.exists(path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        start = checkpoint["epoch"] + 1

    for epoch in range(start, args.epochs):
        losses = train_one_epoch(model, train_loader, optimizer, scheduler, device)
        loss, accuracy, recall = evaluate(model, test_loader, device)
        rate = optimizer.param_groups[0]["lr"]
        print(
            f"epoch {epoch} loss {loss:.4f} acc {accuracy:.2%} worst {recall.min():.2f} {rate:.1e}"
        )
        history.append({"train": losses, "loss": loss, "accuracy": accuracy})
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "scheduler": scheduler.state_dict(), "epoch": epoch}, path)
    return model, history


if __name__ == "__main__":
    main()
