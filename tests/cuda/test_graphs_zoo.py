"""Networks of the zoo train 200 steps in mixed precision as CUDA graphs: the losses are those
without graphs, and those of torch within what mixed precision changes there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.model import Model
from meta.optim import with_sgd
from tests.model.zoo.test_vision import WithLoss as Classified
from tests.model.zoo.test_vision import pair
from tests.model.zoo.text import TEXTS, WithLoss
from tests.model.zoo.vision import SMALL

pytestmark = [pytest.mark.cuda, pytest.mark.slow]
STEPS, RATE = 200, 0.02
Batch = dict[str, torch.Tensor]
Task = tuple[Model, torch.nn.Module, tuple[Any, ...], Callable[[Any], torch.Tensor]]


def text_task(name: str, folder: Path) -> Task:
    text = TEXTS[name]
    ours, theirs = text.pair(folder)
    batch = text.batch(8, 16)
    labels = batch.pop("labels")
    given = {n: meta.array(t, device="cuda") for n, t in batch.items()}
    inputs = (given, meta.array(labels, device="cuda"))
    on_gpu = {n: t.cuda() for n, t in {**batch, "labels": labels}.items()}
    return WithLoss(ours, text.loss), theirs, inputs, lambda model: model(**on_gpu).loss


def vision_task(name: str, folder: Path) -> Task:
    folder.mkdir(exist_ok=True)
    ours, theirs, _ = pair(SMALL[name], folder / "weights.safetensors")
    images, labels = SMALL[name].batch()
    inputs = (meta.array(images, device="cuda"), meta.array(labels, device="cuda"))
    x, target = images.cuda(), labels.cuda()
    loss = torch.nn.functional.cross_entropy
    return Classified(ours), theirs, inputs, lambda model: loss(model(x), target)


def trained(task: Task, cuda_graph: bool | None) -> torch.Tensor:
    model, _, inputs, _ = task
    initial = {n: a.torch().cpu().clone() for n, a in model.state().items()}
    model.to(device="cuda")
    step = meta.amp.autocast(with_sgd(RATE)(model), "bfloat16")
    arguments = (meta.array(1.0, device="cuda"), *inputs)
    run = meta.vm.compile(step, *arguments, cuda_graph=cuda_graph)
    losses = [run(*arguments) for _ in range(STEPS)]
    assert bool(run.cuda_graph) == (cuda_graph is None), run.cuda_graph
    found = torch.stack([loss.torch().float().cpu() for loss in losses])
    for name, array in model.state().items():
        array.update(meta.array(initial[name]))
    return found


def trained_by_torch(task: Task, mixed: bool) -> torch.Tensor:
    _, module, _, loss_of = task
    initial = {n: t.clone() for n, t in module.state_dict().items()}
    module.cuda()
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            loss = loss_of(module)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().float().cpu())
    module.load_state_dict(initial)
    return torch.stack(losses)


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
def test_200_steps(name: str, tmp_path: Path) -> None:
    task = (text_task if name in TEXTS else vision_task)(name, tmp_path / "files")
    exact, mixed = trained_by_torch(task, False), trained_by_torch(task, True)
    found, plain = trained(task, None), trained(task, False)
    noise = (mixed - exact).abs().max().item()
    assert found.isfinite().all() and found[-1] < found[0]
    assert (found - exact).abs().max().item() <= 3 * noise + 1e-2, (noise, found, exact)
    assert (found - plain).abs().max().item() <= noise + 1e-3
