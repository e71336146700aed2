"""A small GPT learns a text character by character, in bfloat16."""

import numpy as np

import meta
import meta.model as nn

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 20
LENGTH, BATCH, WIDTH, HEADS, STEPS = 32, 8, 32, 4, 30


class Block(meta.Model):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, t, 3, HEADS, c // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = meta.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.swapaxes(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(meta.Model):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, codes):
        t = codes.shape[1]
        x = self.tokens(codes) + self.positions(meta.arange(t))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


alphabet = sorted(set(TEXT))
codes = meta.array([alphabet.index(c) for c in TEXT])


def batches(steps):
    rng = np.random.default_rng(0)
    for _ in range(steps):
        starts = rng.integers(0, len(codes) - LENGTH - 1, BATCH)
        rows = meta.stack([codes[s : s + LENGTH + 1] for s in starts])
        yield rows[:, :-1], rows[:, 1:]


@meta.no_grad()
def generate(model, start, count):
    model.eval()
    out = meta.array([[alphabet.index(c) for c in start]])
    for _ in range(count):
        logits = model(out[:, -LENGTH:])[:, -1]
        out = meta.concat([out, logits.argmax(axis=-1, keepdims=True)], axis=1)
    return "".join(alphabet[i] for i in out[0].tolist())


def train(model):
    optimizer = meta.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    model.train()
    for step, (x, y) in enumerate(batches(STEPS)):
        optimizer.zero_grad()
        with meta.amp.autocast_scope("bfloat16"):
            logits = model(x)
            loss = meta.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step(clip_norm=1.0)
        losses.append(loss.item())
        if step % 10 == 0:
            print(f"step {step}: loss {loss:.3f}")
    return losses


if __name__ == "__main__":
    meta.random.seed(0)
    gpt = GPT(len(alphabet))
    print(f"{sum(p.size for p in gpt.parameters())} parameters")
    train(gpt)
    print(generate(gpt, "the ", 20))
