"""Random trainings: a seed in, a program out, which eager PyTorch runs."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

import torch

from tools.fuzz_models.training_step import rows
from tools.fuzz_models.training_step.loop import WORDS, batch
from tools.fuzz_models.training_step.program import Program, Round, namespace, observe

KINDS = ("images",) * 5 + ("tokens",) * 4 + ("tied",) * 2 + ("rows",) * 3 + ("table",)
CHANNELS = (4, 8, 12)
LARGEST = 1e4
"""Losses and parameters beyond this are avoided."""
EVENTS = ("rate", "decay", "schedule", "freeze", "eval", "norms", "torch", "average", "load")
OPTIONS = (
    *[(), (), (), (("clip_norm", "0.1"),), (("clip_value", "0.01"),), (("accumulate", "2"),)],
    *[(("accumulate", "3"), ("clip_norm", "0.5"))],
    *[(("autocast", "torch.bfloat16"),), (("autocast", "torch.bfloat16"), ("accumulate", "2"))],
    *[(("scaler", 'torch.amp.GradScaler("DEVICE", 8.0, growth_interval=2)'),)],
    *[(("autocast", "torch.float16"), ("scaler", 'torch.amp.GradScaler("DEVICE", 2.0**40)'))],
    *[(("scaler", 'torch.amp.GradScaler("DEVICE", 4.0)'), ("accumulate", "2"))],
)


@cache
def _table(block: str) -> tuple[list[str], list[float]]:
    lines = [text.split(" ", 1) for text in block.strip().splitlines()]
    return [text for _, text in lines], [float(weight) for weight, _ in lines]


def _drawn(random: Random, *blocks: str) -> str:
    lines = [pair for block in blocks for pair in zip(*_table(block), strict=True)]
    (found,) = random.choices([t for t, _ in lines], [w for _, w in lines])
    return found


class Draw:
    """Layers that grow, and what they give for an example."""

    def __init__(self, seed: int, quick: bool) -> None:
        self.random = Random(seed)
        self.kind = self.random.choice(KINDS)
        self.dtype = self.random.choice(("float32", "float32", "float32", "float64"))
        self.channels = self.random.choice(CHANNELS) if self.kind != "images" else 4
        self.layers: list[str] = []
        self.most = self.random.randint(1, 4 if quick else 7)
        plan = {"kind": self.kind, "dtype": torch.float64, "device": "cpu", "channels_last": False}
        self.x, _ = batch(plan, 3, 5, 0)

    def grow(self) -> None:
        """Draw the layers up to the scores of categories."""
        c = self.channels
        first = {
            "images": f"nn.Conv2d(4, {c}, 3, padding=1)",
            "rows": f"nn.Linear(8, {c})",
            "table": f"Table({WORDS}, {c})",
        }
        words = self.random.choice((f"Words({WORDS}, {c})", f"Words({WORDS}, {c}, padding=0)"))
        self.append(first.get(self.kind, words))
        state = "tokens" if self.kind in ("tokens", "tied") else self.kind
        tables = {"images": (rows.IMAGES,), "tokens": (rows.TOKENS, rows.SHARED)}
        for _ in range(self.most):
            self.layer(*tables.get(state, (rows.ROWS, rows.SHARED)))
        if state == "images":
            flat = "Apply(lambda x: x.flatten(2).mT)"
            pooled = self.random.choice(("Apply(lambda x: x.mean((2, 3)))", flat))
            self.append(pooled)
            if pooled == flat:
                self.layer(rows.TOKENS)
                self.append("Apply(lambda x: x.amax(1))")
            if self.random.random() < 0.5:
                self.layer(rows.SHARED)
        if self.kind == "tied":
            self.append(f"nn.Linear({self.channels}, {c})")
        else:
            self.append(f"nn.Linear({self.channels}, {WORDS})")

    def layer(self, *tables: str) -> None:
        """Draw a layer."""
        for _ in range(20):
            text = _drawn(self.random, *tables)
            wider = re.search(r"\bd\b", text) is not None
            d = self.random.choice(CHANNELS) if wider else self.channels
            names = {"c": str(self.channels), "d": str(d)}
            if self.append(re.sub(r"\b([cd])\b", lambda m, n=names: n[m[1]], text)):
                return

    def append(self, text: str) -> bool:
        """Add a layer if it runs on the example, and gives moderate numbers."""
        names = _names()
        try:
            torch.manual_seed(0)
            made = eval(text, names).double()
            y = made(*self.x)
        except (RuntimeError, ValueError):
            return False
        if y.numel() > 4000 or not bool(y.isfinite().all()) or float(y.abs().max()) > 50:
            return False
        self.layers.append(text)
        self.x = (y.detach(),)
        self.channels = y.shape[1] if y.ndim == 4 else y.shape[-1]
        return self.channels % 4 == 0 or text.endswith(f"{WORDS})")

    def rounds(self) -> tuple[Round, ...]:
        """Draw what is done: sizes repeat, and the last batch is smaller."""
        random = self.random
        sizes = [(random.randint(2, 5), random.randint(2, 6)) for _ in range(2)]
        found = []
        for number in range(random.randint(3, 5)):
            n, t = sizes[0] if random.random() < 0.7 else sizes[1]
            events: Sequence[str] = ()
            if random.random() < 0.5:
                events = random.sample(EVENTS, random.choice((1, 1, 2)))
            if number and random.random() < 0.07:
                events = ["fresh"]
            found.append(Round(n, t, tuple(events)))
        return tuple(found)


@cache
def _names() -> dict[str, Any]:
    return namespace(Program("rows", (), "y", "result", "float32", False, "", "all", (), ()))


def generate(seed: int, quick: bool = False) -> Program:
    """Return the program of a seed."""
    for attempt in range(1000):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = _attempt(Random(f"{seed} {attempt}").getrandbits(64), quick)
            if program is not None and is_sound(program):
                return program
    raise AssertionError(f"no program of seed {seed} runs")


def _attempt(seed: int, quick: bool) -> Program | None:
    draw = Draw(seed, quick)
    draw.grow()
    if draw.x[0].shape[-1] != WORDS and draw.kind != "tied":
        return None
    random = draw.random
    options = random.choice(OPTIONS)
    dtype = "float32" if dict(options).get("autocast") else draw.dtype
    optimizer = _drawn(random, rows.OPTIMIZERS)
    groups = random.choice(("all", "all", "trained", "two", "but the first"))
    return Program(
        draw.kind,
        tuple(draw.layers),
        _drawn(random, rows.LOSSES),
        random.choice(("result", "loss", "dict")),
        dtype,
        # Adafactor and Muon look at rows and columns: their parameters are in the usual order.
        draw.kind == "images"
        and not re.search("Adaf|Muon", optimizer)
        and draw.random.random() < 0.5,
        optimizer,
        "matrices" if "Muon" in optimizer else groups,
        options,
        draw.rounds(),
    )


def is_sound(program: Program) -> bool:
    """Whether eager PyTorch runs a program, and its numbers stay moderate."""
    try:
        seen = observe(program)
    except Exception:
        return False
    tensors = [v for w, v in seen if isinstance(v, torch.Tensor) and v.is_floating_point()]
    values = [float(v.detach().abs().max()) for v in tensors if v.numel()]
    return bool(values) and all(math.isfinite(v) and v < LARGEST for v in values)
