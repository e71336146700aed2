"""Train a small GPT on a text, character by character, and let it write.

    python examples/char_gpt.py --text my.txt --steps 2000 --folder run

Stop it with Ctrl-C and start it again: it goes on from the last checkpoint in the folder. Without a
text it learns from Python's own reference pages.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

import meta
from meta.model.zoo import GPT2Config, GPT2LMHeadModel, causal_lm_loss
from meta.optim import with_adamw
from meta.optim.schedule import cosine, linear_warmup
from meta.train import fit

LENGTH, BATCH = 64, 16


class Windows:
    """Pieces of a text at random places; each is the target, too: its characters' successors."""

    def __init__(self, codes, batches):
        self.codes, self.batches, self.epoch = codes, batches, 0

    def set_epoch(self, epoch):  # the order depends on this alone, so a resumed run sees the same
        self.epoch = epoch

    def __len__(self):
        return self.batches

    def __iter__(self):
        generator = np.random.default_rng(self.epoch)
        for _ in range(self.batches):
            starts = generator.integers(0, len(self.codes) - LENGTH, BATCH)
            rows = self.codes[starts[:, None] + np.arange(LENGTH)]
            yield rows, rows


def write(model, alphabet, start, count, temperature=0.8):
    """Return a text that begins with ``start``."""
    model.eval()
    codes = [alphabet.index(c) for c in start]
    generator = np.random.default_rng(0)
    # One program for all lengths: what follows the last character does not change its scores.
    window = np.zeros((1, LENGTH), "int64")
    device = next(model.parameters()).device
    run = meta.vm.compile(model, meta.array(window, device=device))
    for _ in range(count):
        last = codes[-LENGTH:]
        window[0, : len(last)] = last
        scores = run(meta.array(window, device=device)).numpy()[0, len(last) - 1] / temperature
        chances = np.exp(scores - scores.max())
        codes.append(int(generator.choice(len(alphabet), p=chances / chances.sum())))
    return "".join(alphabet[c] for c in codes)


def main():
    """Read the text, train, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("char_gpt"), help="for checkpoints")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    text = options.text.read_text("utf-8") if options.text else "\n".join(topics.values())
    alphabet = sorted(set(text))
    codes = np.array([alphabet.index(c) for c in text])
    held_out = len(codes) // 10

    meta.random.seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(alphabet), n_positions=LENGTH, n_embd=options.width,
            n_layer=options.layers, n_head=4,
        )
    )  # fmt: skip
    warm_up = max(1, options.steps // 20)
    record = fit(
        model,
        causal_lm_loss,
        Windows(codes[:-held_out], 200),
        with_adamw(1e-3, weight_decay=0.1, clip_norm=1.0),
        steps=options.steps,
        schedule=linear_warmup(warm_up).then(cosine(max(1, options.steps - warm_up), end=0.1)),
        eval_data=Windows(codes[-held_out:], 10),
        checkpoint=options.folder,
        log=options.folder.with_suffix(".csv"),
        device=options.device,
        seed=0,
    )
    print(record)
    print(write(model, alphabet, "The ", 200))


if __name__ == "__main__":
    main()
