"""An LSTM forecasts a series of two waves with a trend, and then goes on by itself."""

import numpy as np
import torch
import torch.nn as nn

WINDOW, HIDDEN, EPOCHS, BATCH = 24, 16, 4, 32


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, HIDDEN, num_layers=2, batch_first=True)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x):
        output, _ = self.lstm(x)
        return self.head(output[:, -1]).squeeze(-1)


def make_series():
    t = np.arange(400)
    rng = np.random.default_rng(0)
    y = np.sin(t / 6) + 0.5 * np.sin(t / 17) + 0.002 * t + 0.05 * rng.normal(size=400)
    return torch.tensor(y, dtype=torch.float32)


def windows(series):
    mean, std = series[:300].mean(), series[:300].std()
    series = (series - mean) / std
    x = torch.stack([series[i : i + WINDOW] for i in range(len(series) - WINDOW)])
    return x.unsqueeze(-1), series[WINDOW:]


def train(model, x, y):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    loss_fn = nn.MSELoss()
    losses = []
    for epoch in range(EPOCHS):
        model.train()
        for i in range(0, len(x), BATCH):
            loss = loss_fn(model(x[i : i + BATCH]), y[i : i + BATCH])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        print(f"epoch {epoch}: loss {np.mean(losses[-8:]):.4f}, rate {scheduler.get_last_lr()[0]}")
    return losses


@torch.no_grad()
def forecast(model, last, steps):
    model.eval()
    found = last.clone()
    for _ in range(steps):
        following = model(found[None, -WINDOW:])
        found = torch.cat([found, following[:, None]])
    return found[len(last) :, 0]


def main(model):
    x, y = windows(make_series())
    losses = train(model, x[:276], y[:276])
    model.eval()
    with torch.no_grad():
        error = (model(x[276:]) - y[276:]).abs().mean().item()
    future = forecast(model, x[-1], 10)
    print(f"error {error:.3f}, forecast {future[:3].tolist()}")
    return losses, error, future.numpy()


if __name__ == "__main__":
    torch.manual_seed(0)
    main(Forecaster())
