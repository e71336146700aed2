"""A variational autoencoder of handwritten digits."""

from sklearn.datasets import load_digits

import meta
import meta.model as nn

EPOCHS, BATCH, LATENT = 6, 64, 4


class VAE(meta.Model):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.mean = nn.Linear(48, LATENT)
        self.log_var = nn.Linear(48, LATENT)
        self.decoder = nn.Sequential(nn.Linear(LATENT, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, x):
        h = self.encoder(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + meta.exp(0.5 * log_var) * meta.random.normal(mean.shape)
        return self.decoder(z), mean, log_var


def loss_function(logits, x, mean, log_var):
    rebuilt = meta.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    divergence = -0.5 * meta.sum(1 + log_var - mean**2 - log_var.exp())
    return (rebuilt + divergence) / len(x)


def load():
    return meta.array(load_digits().data / 16, dtype=meta.float32)


def train(model, x):
    optimizer = meta.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for epoch in range(EPOCHS):
        total = 0.0
        order = meta.random.permutation(len(x))
        for i in range(0, len(x), BATCH):
            batch = x[order[i : i + BATCH]]
            logits, mean, log_var = model(batch)
            loss = loss_function(logits, batch, mean, log_var)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        losses.append(total / len(x))
        print(f"epoch {epoch}: {losses[-1]:.2f}")
    return losses


@meta.no_grad()
def sample(model, count):
    return meta.sigmoid(model.decoder(meta.random.normal((count, LATENT))))


def main():
    meta.random.seed(0)
    model = VAE()
    losses = train(model, load())
    images = sample(model, 8)
    print(f"pixels from {images.min():.2f} to {images.max():.2f}")
    return losses, images.numpy()


if __name__ == "__main__":
    main()
