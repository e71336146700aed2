"""An LSTM forecasts a series of two waves with a trend, and then goes on by itself."""

import numpy as np

import meta
import meta.model as nn

WINDOW, HIDDEN, EPOCHS, BATCH = 24, 16, 4, 32


class Forecaster(meta.Model):
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
    return meta.array(y, dtype=meta.float32)


def windows(series):
    mean, std = series[:300].mean(), series[:300].std(correction=1)
    series = (series - mean) / std
    x = meta.stack([series[i : i + WINDOW] for i in range(len(series) - WINDOW)])
    return x.unsqueeze(-1), series[WINDOW:]


def train(model, x, y):
    optimizer = meta.optim.Adam(model.parameters(), lr=0.01)
    scheduler = meta.optim.schedule.step_decay(2, 0.5)
    loss_fn = meta.mse_loss
    losses = []
    for epoch in range(EPOCHS):
        model.train()
        for i in range(0, len(x), BATCH):
            loss = loss_fn(model(x[i : i + BATCH]), y[i : i + BATCH])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(clip_norm=1.0)
            losses.append(loss.item())
        optimizer.lr = 0.01 * scheduler(epoch + 1)
        print(f"epoch {epoch}: loss {np.mean(losses[-8:]):.4f}, rate {optimizer.lr:.4f}")
    return losses


@meta.no_grad()
def forecast(model, last, steps):
    model.eval()
    found = last.clone()
    for _ in range(steps):
        following = model(found[None, -WINDOW:])
        found = meta.concat([found, following[:, None]])
    return found[len(last) :, 0]


def main(model):
    x, y = windows(make_series())
    losses = train(model, x[:276], y[:276])
    model.eval()
    with meta.no_grad():
        error = (model(x[276:]) - y[276:]).abs().mean().item()
    future = forecast(model, x[-1], 10)
    print(f"error {error:.3f}, forecast {future[:3].tolist()}")
    return losses, error, future.numpy()


if __name__ == "__main__":
    meta.random.seed(0)
    main(Forecaster())
