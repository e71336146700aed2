"""A training step on the CPU beside torch eager and torch.compile, in one run.

    python benchmarks/train_cpu.py [--models digits,gpt] [--threads 2] [--check] [--json]
    python benchmarks/train_cpu.py --markdown      # also replaces the table in docs/performance.md

A step is forward, backward and an update by AdamW: in `meta` one compiled program, in torch the
model's own module with ``torch.optim.AdamW(fused=True)``, whose loss and update torch.compile has
compiled. Networks: *digits*, the convolutional network of ``python -m meta demo`` on 8x8 images of
digits, and *gpt*, a GPT-2 of 2 layers of width 128 that learns characters (needs transformers).

All start from equal parameters, and the losses of the first steps are compared before anything is
timed. How contenders take turns is told in models_cpu.py. The goal, which ``--check`` holds: no
step slower than the better of the two torch ones.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from command import add_names, add_outputs, parser_of
from models.contenders import ON_CPU, Contender
from models.task import Row, Task, successors
from report import conditions, has_compiler, write
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from turns import add_threads, in_turns, set_threads

import meta
from meta.cli.demo import GRID, SmallNet
from meta.model.zoo import GPT2Config, GPT2LMHeadModel, causal_lm_loss

LEAST_RATIO = 1.0
BEGIN = "<!-- written by benchmarks/train_cpu.py --markdown -->"
COMPARED_STEPS, TOLERANCE = 4, 2e-3
BATCH, STEPS, VOCABULARY, WIDTH, HEADS, LAYERS = 16, 64, 128, 128, 4, 2


class TorchSmallNet(nn.Module):
    """The demo's network."""

    def __init__(self, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.linear = nn.Linear(2 * width * GRID * GRID, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (n, classes) of images (n, 1, 8, 8)."""
        x = functional.relu(self.norm1(self.conv1(x)))
        x = functional.relu(self.norm2(self.conv2(x)))
        return self.linear(functional.max_pool2d(x, 2).flatten(1))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 64 images of digits and their labels."""
    data = load_digits()
    x = torch.from_numpy(data.images[:64]).float().div(16).reshape(64, 1, 8, 8)
    return x, torch.from_numpy(data.target[:64]).long()


def characters() -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of codes below 128, inputs and targets alike."""
    rows = torch.randint(VOCABULARY, (BATCH, STEPS), generator=torch.Generator().manual_seed(1))
    return rows, rows


def gpt_config() -> dict[str, Any]:
    """Return the sizes of the GPT-2, without dropout, so that losses can be compared."""
    sizes = {"vocab_size": VOCABULARY, "n_positions": STEPS, "n_embd": WIDTH}
    nothing = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    return {**sizes, "n_layer": LAYERS, "n_head": HEADS, **nothing}


def torch_gpt() -> nn.Module:
    """Return transformers' GPT-2; it is imported where it is asked for, as it takes seconds."""
    import transformers

    config = transformers.GPT2Config(**gpt_config(), bos_token_id=0, eos_token_id=0)
    module: nn.Module = transformers.GPT2LMHeadModel(config)
    return module


TASKS = {
    "digits": Task(
        "CNN, batch 64",
        TorchSmallNet,
        functional.cross_entropy,
        digits,
        ours=lambda: SmallNet((1, 8, 8), 10),
        loss=meta.cross_entropy,
    ),
    "gpt": Task(
        f"{LAYERS} layers of {WIDTH}, batch {BATCH}x{STEPS}",
        torch_gpt,
        successors,
        characters,
        ours=lambda: GPT2LMHeadModel(GPT2Config(**gpt_config())),
        loss=causal_lm_loss,
    ),
}


def measure(name: str, names: list[str], rounds: int) -> dict[str, Any]:
    """Return one record: milliseconds by contender, and the ratio to the best of torch."""
    task = TASKS[name]
    torch._dynamo.reset()
    row = Row(lambda _: task, True, "float32", "adamw")
    steps = {n: Contender(row, n, "cpu").compiled() for n in names}
    losses = {n: [step().item() for _ in range(COMPARED_STEPS)] for n, step in steps.items()}
    for n in names:
        for found, expected in zip(losses[n], losses["eager"], strict=True):
            if abs(found - expected) > TOLERANCE * abs(expected):
                raise SystemExit(f"{name}: losses of {n} are {losses[n]}, not {losses['eager']}")
    ms = in_turns(steps, rounds)
    ratio = min(t for n, t in ms.items() if n != "meta") / ms["meta"]
    return {"model": name, "what": task.what, "ms": ms, "ratio": ratio}


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    head = ["model", "what", "meta, ms", "torch eager, ms", "torch.compile, ms", "to best"]
    return [
        head,
        *(
            [
                *(r["model"], r["what"]),
                *(f"{r['ms'][n]:.3f}" if n in r["ms"] else "" for n in ON_CPU),
                f"{r['ratio']:.2f}x",
            ]
            for r in records
        ),
    ]


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds the goal missed."""
    parser = parser_of(__doc__)
    add_names(parser, "--models", TASKS)
    add_threads(parser)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    add_outputs(parser)
    options = parser.parse_args()
    if options.markdown and set(options.models) != set(TASKS):
        parser.error("--markdown is for all models")
    set_threads(options.threads)
    compiler = not options.no_compile and has_compiler()
    names = [n for n in ON_CPU if compiler or n != "compile"]
    records = [measure(name, names, options.rounds) for name in options.models]
    where = conditions(compiler, f"medians of {options.rounds} turns")
    write(options, where, {"models": records}, rows(records), begin=BEGIN)
    return int(options.check and any(r["ratio"] < LEAST_RATIO for r in records))


if __name__ == "__main__":
    sys.exit(main())
