"""A random training as data, and as Python text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tools.fuzz_models.training_step import layers, loop

HEADER = """
import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import meta.interop.torch
""".strip()
GROUPS = {
    "all": "model.parameters()",
    "trained": "[x for x in model.parameters() if x.requires_grad]",
    "matrices": "[x for x in model.parameters() if x.ndim == 2]",
    "two": "in_groups(model)",
    "but the first": "list(model.parameters())[1:]",
}
"""Which parameters an optimizer has, as text."""


@dataclass(frozen=True)
class Round:
    """An update: of a batch of n elements, tokens of a length t; and what happens before it.

    events: of `loop.EVENTS`.
    """

    n: int
    t: int
    events: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """A model, an optimizer, options of the step, and what is done with them.

    kind: of the batches, see `loop.batch`. layers: texts that make them. loss: text, of y and t.
    returns: what the model does: "result", "loss" or "dict". groups: of GROUPS. options: of the
    step, by name, as text.
    """

    kind: str
    layers: tuple[str, ...]
    loss: str
    returns: str
    dtype: str
    channels_last: bool
    optimizer: str
    groups: str
    options: tuple[tuple[str, str], ...]
    rounds: tuple[Round, ...]

    @property
    def accumulate(self) -> int:
        """Return the number of calls for an update."""
        return int(dict(self.options).get("accumulate", "1"))

    @property
    def events(self) -> set[str]:
        """Return what happens between updates."""
        return {e for r in self.rounds for e in r.events}


def source(program: Program, device: str = "cpu") -> str:
    """Return what is particular to a program as text: ``model()``, ``optimizer(model)``,
    ``loss``, ``options()`` and ``PLAN``, which `loop.train` reads.
    """
    options = (f"{name}={text}" for name, text in program.options)
    given = ", ".join(options).replace("DEVICE", device)
    made = [f"        {text}," for text in program.layers]
    moved = f'model.to("{device}", torch.{program.dtype})'
    if program.channels_last:
        moved += ".to(memory_format=torch.channels_last)"
    rounds = [f"        ({r.n}, {r.t}, {r.events!r})," for r in program.rounds]
    lines = [
        "def loss(y, t):",
        "    y, t = y.reshape(-1, y.shape[-1]), t.flatten()",
        f"    return {program.loss}",
        "",
        "",
        "def model():",
        "    layers = [",
        *made,
        "    ]",
        *(["    layers.append(Tied(layers[0]))"] if program.kind == "tied" else []),
        f"    model = Model(layers, loss, {program.returns!r})",
        f"    return {moved}",
        "",
        "",
        "def optimizer(model):",
        f"    p = {GROUPS[program.groups]}",
        f"    return {program.optimizer}",
        "",
        "",
        "def options():",
        f"    return dict({given})",
        "",
        "",
        "PLAN = dict(",
        f"    kind={program.kind!r},",
        f"    dtype=torch.{program.dtype},",
        f"    channels_last={program.channels_last},",
        f"    device={device!r},",
        "    rounds=[",
        *rounds,
        "    ],",
        ")",
    ]
    return "\n".join(lines)


def text_of(module: Any) -> str:
    """Return the text of a module behind its imports."""
    lines = Path(module.__file__).read_text().splitlines()
    ends = [i for i, text in enumerate(lines) if text.startswith(("import ", "from "))]
    return "\n".join(lines[ends[-1] + 1 :]).strip()


def namespace(program: Program, device: str = "cpu") -> dict[str, Any]:
    """Return the functions of a program."""
    names: dict[str, Any] = {}
    exec(HEADER, names)
    names.update(vars(layers))
    names.update(vars(loop))
    exec(compile(source(program, device), "<program>", "exec"), names)
    return names


def observe(
    program: Program,
    device: str = "cpu",
    ours: bool = False,
    mode: Callable[[], AbstractContextManager[Any]] | None = None,
) -> list[tuple[str, Any]]:
    """Run a program; return what is seen of it, each with a text that says what it is.

    mode: of a context around forward and backward of PyTorch's steps.
    """
    names = namespace(program, device)
    torch.manual_seed(0)
    make = loop.step_of_meta if ours else loop.step_of_torch
    return loop.train(names, make, mode)
