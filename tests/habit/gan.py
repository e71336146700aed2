"""A generator and a discriminator play about points on a circle."""

import numpy as np

import meta
import meta.model as nn

STEPS, BATCH = 60, 64


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.LeakyReLU(0.2),
        nn.Linear(32, outputs),
    )  # fmt: skip


def real_points(rng):
    angle = rng.uniform(0, 2 * np.pi, BATCH)
    return meta.array(np.stack([np.cos(angle), np.sin(angle)], 1).astype("float32"))


def noise(rng):
    return meta.array(rng.normal(size=(BATCH, 4)).astype("float32"))


def train(generator, discriminator):
    rng = np.random.default_rng(0)
    g_optimizer = meta.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    d_optimizer = meta.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    ones, zeros = meta.ones((BATCH, 1)), meta.zeros((BATCH, 1))
    history = []
    for step in range(STEPS):
        # The discriminator tells real points from made ones.
        real, fake = real_points(rng), generator(noise(rng))
        d_loss = meta.binary_cross_entropy_with_logits(discriminator(real), ones)
        d_loss = d_loss + meta.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()

        # The generator wants its points to be taken for real.
        for p in discriminator.parameters():
            p.requires_grad = False
        g_loss = meta.binary_cross_entropy_with_logits(discriminator(fake), ones)
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        for p in discriminator.parameters():
            p.requires_grad = True

        history.append((d_loss.item(), g_loss.item()))
        if step % 20 == 0:
            print(f"{step:4d} d {d_loss.item():.3f} g {g_loss.item():.3f}")
    return history


def radius(generator):
    generator.eval()
    with meta.no_grad():
        points = generator(noise(np.random.default_rng(1)))
    return meta.linalg.vector_norm(points, axis=1).mean().item()


if __name__ == "__main__":
    meta.random.seed(0)
    generator, discriminator = network(4, 2), network(2, 1)
    train(generator, discriminator)
    print(f"mean radius {radius(generator):.3f}")
