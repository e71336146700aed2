"""A small convolutional network for digits, with early stopping and the best weights kept."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, PATIENCE = 6, 64, 2


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def load():
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    y = torch.tensor(digits.target)
    train = DataLoader(TensorDataset(x[:1400], y[:1400]), BATCH, shuffle=False, drop_last=True)
    test = DataLoader(TensorDataset(x[1400:], y[1400:]), 397)
    return train, test


@torch.no_grad()
def evaluate(model, data):
    model.eval()
    loss = correct = count = 0
    for x, y in data:
        scores = model(x)
        loss += F.cross_entropy(scores, y, reduction="sum").item()
        correct += (scores.argmax(dim=1) == y).sum().item()
        count += len(y)
    return loss / count, correct / count


def train(model, data, held_out):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(data))
    best, bad, losses = float("inf"), 0, []
    for epoch in range(EPOCHS):
        model.train()
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        loss, accuracy = evaluate(model, held_out)
        print(f"epoch {epoch}: loss {loss:.3f} accuracy {accuracy:.3f}")
        if loss < best:
            best, bad, best_state = loss, 0, copy.deepcopy(model.state_dict())
        else:
            bad += 1
            if bad > PATIENCE:
                break
    model.load_state_dict(best_state)
    return losses


def main(model):
    data, held_out = load()
    losses = train(model, data, held_out)
    loss, accuracy = evaluate(model, held_out)
    print(f"best: loss {loss:.3f} accuracy {accuracy:.3f}")
    return losses, loss, accuracy


if __name__ == "__main__":
    torch.manual_seed(0)
    main(CNN())
