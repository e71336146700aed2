"""The loop of a random training: the same with steps of PyTorch's and with steps of ours."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import meta.interop.torch

WORDS = 11
"""Categories of tokens, and of targets."""


def in_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return two groups of parameters: vectors with a learning rate of their own, and others."""
    parameters = list(model.parameters())
    vectors = [p for p in parameters if p.ndim < 2]
    others = [p for p in parameters if p.ndim >= 2]
    return [{"params": vectors, "weight_decay": 0.0, "lr": 0.02}, {"params": others}]


def batch(plan: dict[str, Any], n: int, t: int, seed: int) -> tuple[tuple[Any, ...], Tensor]:
    """Return inputs and targets: of "images", "tokens", "tied" ones, "rows", and a "table"."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(plan["dtype"])
        return x.to(plan["device"])

    def words(*shape: int) -> Tensor:
        return torch.randint(WORDS, shape, generator=generator).to(plan["device"])

    if plan["kind"] == "images":
        x = numbers(n, 4, 8, 8)
        layout = torch.channels_last if plan["channels_last"] else torch.contiguous_format
        return (x.contiguous(memory_format=layout),), words(n)
    if plan["kind"] in ("tokens", "tied"):
        return (words(n, t),), words(n, t)
    if plan["kind"] == "rows":
        return (numbers(n, 8),), words(n)
    return (words(n, 3), numbers(n, 6)), words(n)


def called(model: nn.Module, inputs: tuple[Any, ...], target: Tensor, loss: Any) -> Tensor:
    """Return the loss of a batch."""
    if model.returns == "result":
        return loss(model(*inputs), target)  # type: ignore[no-any-return]
    found = model(*inputs, target=target)
    return found["loss"] if isinstance(found, dict) else found


def step_of_torch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, options: Any, mode: Any = None
) -> Callable[..., Tensor]:
    """Return what makes a step as PyTorch's tutorials write it."""
    accumulate, dtype = options.get("accumulate", 1), options.get("autocast")
    scaler = options.get("scaler") or torch.amp.GradScaler(enabled=False)
    device = next(model.parameters()).device.type
    calls = 0

    def step(inputs: tuple[Any, ...], target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        with nullcontext() if mode is None else mode():
            with torch.autocast(device, dtype, enabled=dtype is not None):
                found = called(model, inputs, target, loss)
            scaler.scale(found / accumulate).backward()
        if calls % accumulate == 0:
            scaler.unscale_(optimizer)
            parameters = [p for g in optimizer.param_groups for p in g["params"]]
            if "clip_norm" in options:
                nn.utils.clip_grad_norm_(parameters, options["clip_norm"])
            if "clip_value" in options:
                nn.utils.clip_grad_value_(parameters, options["clip_value"])
            for update in (lambda: scaler.step(optimizer), scaler.update):
                if mode is not None:
                    disturb(parameters, optimizer, mode().disturb)
                update()
            optimizer.zero_grad()
            model.zero_grad()
        return found.detach()

    return step


@torch.no_grad()
def disturb(
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    change: Callable[[Tensor], None],
) -> None:
    """Change what an update has written: parameters, and their state but for counts."""
    for p in parameters:
        change(p)
        for x in optimizer.state.get(p, {}).values():
            if isinstance(x, Tensor) and x.ndim:
                change(x)


def step_of_meta(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, options: Any, mode: Any = None
) -> Callable[..., Tensor]:
    """Return what makes a step by `training_step`."""
    of_result = model.returns == "result"
    step = meta.interop.torch.training_step(
        model, optimizer, loss if of_result else None, **options
    )
    if of_result:
        return lambda inputs, target: step(inputs, target)
    return lambda inputs, target: step(*inputs, target=target)


def train(names: dict[str, Any], make_step: Any, mode: Any = None) -> list[tuple[str, Any]]:
    """Train as the plan says; return what is seen, each with a text that says what it is."""
    plan, loss = names["PLAN"], names["loss"]
    model = names["model"]()
    optimizer, options = names["optimizer"](model), names["options"]()
    step = make_step(model, optimizer, loss, options, mode)
    seen: list[tuple[str, Any]] = []
    average = None
    where = [t.data_ptr() for t in model.state_dict().values()]
    for number, (n, t, events) in enumerate(plan["rounds"]):
        for event in events:
            if event == "rate":
                for i, group in enumerate(optimizer.param_groups):
                    group["lr"] = group["lr"] * (0.5 + i)
            elif event == "decay":
                optimizer.param_groups[0]["weight_decay"] = 0.2
            elif event == "schedule":
                schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
                schedule.step()
            elif event == "freeze":
                next(p for p in model.parameters() if p.requires_grad).requires_grad_(False)
            elif event == "eval":
                model.eval()
                with torch.no_grad():
                    inputs, target = batch(plan, n, t, 99)
                    seen.append((f"the result before round {number}", model(*inputs).clone()))
                model.train()
            elif event == "norms":
                for m in model.modules():
                    if "Norm" in type(m).__name__ and number:
                        m.train(not m.training)
            elif event == "torch":
                of_torch = step_of_torch(model, optimizer, loss, {}, mode)
                of_torch(*batch(plan, n, t, 50 + number))
            elif event == "average":
                average = average or AveragedModel(model)
                average.update_parameters(model)
            elif event in ("load", "fresh"):
                file = io.BytesIO()
                torch.save((model.state_dict(), optimizer.state_dict()), file)
                file.seek(0)
                saved = torch.load(file)
                if event == "fresh":
                    unsaved = {k: v.clone() for k, v in model.named_buffers()}
                    frozen = [p.requires_grad for p in model.parameters()]
                    modes = [m.training for m in model.modules()]
                    model = names["model"]()
                    for k, v in model.named_buffers():
                        v.copy_(unsaved[k])
                    for p, own in zip(model.parameters(), frozen, strict=True):
                        p.requires_grad_(own)
                    for m, own in zip(model.modules(), modes, strict=True):
                        m.training = own
                    optimizer = names["optimizer"](model)
                    average = None
                model.load_state_dict(saved[0])
                optimizer.load_state_dict(saved[1])
                if event == "fresh":
                    step = make_step(model, optimizer, loss, options, mode)
                    where = [t.data_ptr() for t in model.state_dict().values()]
        for i in range(options.get("accumulate", 1)):
            inputs, target = batch(plan, max(1, n - i), t, 1000 * number + i)
            seen.append((f"the loss of round {number}", step(inputs, target).clone()))
        seen += state(model, optimizer, f"after round {number}")
        if "scaler" in options:
            seen.append((f"the scaler after round {number}", str(options["scaler"].state_dict())))
    same = where == [t.data_ptr() for t in model.state_dict().values()]
    seen.append(("whether the tensors are where they were", same))
    if average is not None:
        averages = average.state_dict().items()
        seen += [(f"the average of {k}", v.clone()) for k, v in averages]
    gradients = [p.grad is None for p in model.parameters()]
    return [*seen, ("whether there are no gradients", all(gradients))]


def state(model: nn.Module, optimizer: Any, at: str) -> list[tuple[str, Any]]:
    """Return the states of a model and its optimizer."""
    seen = [(f"{k} {at}", v.clone()) for k, v in model.state_dict().items()]
    seen += [(f"{k} {at}", v.clone()) for k, v in model.named_buffers()]
    saved = copy.deepcopy(optimizer.state_dict())
    for number, group in enumerate(saved["param_groups"]):
        rate = float(group.pop("lr"))
        seen.append((f"group {number} {at}", f"{rate:.6g} {group}"))
    for number, own in sorted(saved["state"].items()):
        # Where a scaler has left out all steps, PyTorch has made no state yet.
        if not any(isinstance(x, Tensor) and bool(x.any()) for x in own.values()):
            continue
        for key, value in sorted(own.items()):
            is_tensor = isinstance(value, Tensor)
            seen.append((f"{key} of {number} {at}", value if is_tensor else str(value)))
    return seen
