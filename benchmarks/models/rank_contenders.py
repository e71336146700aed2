"""What distributed.py compares: `RankContender`, a row under one library on one of several ranks.

``meta``: data parallel; ``zero1``, ``zero2``, ``zero3``: with parts of the optimizer's arrays, the
gradients, the parameters on each rank. ``half``: with parameters in bfloat16, as FSDP2 computes
with, and their float32 masters, of which each rank has parts as with ``zero2``. ``ddp``:
DistributedDataParallel with torch.compile and buckets of gradients that are views; on one rank
torch.compile alone. ``step``: the same module by `meta.interop.torch.training_step`. ``fsdp2``:
fully_shard of each block, which is compiled, and of the rest.
``joined``: `meta` on one device with the batches of all ranks in one, whose losses are what those
of several ranks have to be.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

import meta
from meta.interop.torch import training_step as step_of_meta
from meta.model import Model, empty_init
from meta.optim import with_adamw
from meta.train.objective import Objective
from models.contenders import training_step
from models.rank_rows import RankRow
from models.task import Task, scores, state_of

RATE, WEIGHT_DECAY = 1e-4, 0.01
BATCHES = 4
"""Different batches, which take turns while losses are compared."""
JOINED = "joined"
HALF = "half"
OURS = ("meta", "zero1", "zero2", "zero3", HALF)
THEIRS = ("ddp", "fsdp2")
STEP = "step"
PRECISION = "bfloat16"
Call = Callable[[int], torch.Tensor]
"""One step with the batch of a number; returns this rank's loss."""


@dataclass(frozen=True)
class RankSetup:
    """Where a contender runs.

    Attributes
    ----------
    rank, ranks: which of how many. most: the ranks whose batches ``joined`` joins. device: "cpu" or
    "cuda:0". mesh: of `meta.distributed`, None for one rank. compiler: whether torch compiles.
    reduce_dtype: in which gradients are averaged; None: their own, for FSDP2 float32. passes: the
    options of `meta.PassContext` for `meta`.
    """

    rank: int
    ranks: int
    most: int
    device: str
    mesh: Any = None
    compiler: bool = True
    reduce_dtype: str | None = None
    passes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of device."""
        return self.device.partition(":")[0]


class RankContender:
    """A row under one library, with its model and batches on the device, not compiled yet.

    All start from the same random parameters. ``compiled()`` returns what runs a step.

    Attributes
    ----------
    executable: of `meta`, what is compiled, later; else None.
    """

    def __init__(self, row: RankRow, name: str, place: RankSetup, tiny: bool = False) -> None:
        task = row.task(tiny, BATCHES * place.most)
        torch.manual_seed(0)
        with torch.device(place.device):
            theirs = task.theirs()
        self.executable: Any = None
        batches = _batches(task, name, place)
        if name in (*OURS, JOINED):
            with meta.device(place.device), empty_init():
                ours = task.ours()
            ours.load_state_dict(state_of(theirs))
            del theirs
            if name == HALF and row.images:
                raise ValueError("batch normalisation keeps its statistics in float32")
            self._compiled = self._of_meta(name, task, ours, batches, place)
        else:
            make = {"ddp": _data_parallel, "fsdp2": _fully_sharded, STEP: _one_program}[name]
            self._compiled = lambda: make(row, task, theirs, batches, place)
        gc.collect()

    def compiled(self) -> Call:
        """Return what runs it."""
        return self._compiled()

    def release(self) -> None:
        """Let go what may hold graphs with collectives in them: before the ranks part."""
        self.executable = None
        del self._compiled
        gc.collect()

    def _of_meta(
        self, name: str, task: Task, model: Model, batches: list[Any], place: RankSetup
    ) -> Callable[[], Call]:
        parallel: dict[str, Any] = {}
        if place.ranks > 1:
            parallel = {"over": "dp", "reduce_dtype": place.reduce_dtype}
            if name != "meta":
                parallel["zero"] = 2 if name == HALF else int(name.removeprefix("zero"))
        make = with_adamw(RATE, weight_decay=WEIGHT_DECAY, **parallel)
        if name == HALF:
            model = model.to(dtype=PRECISION)
            run: Any = make(Objective(model, lambda s, t: task.loss(meta.astype(s, "float32"), t)))
        else:
            run = meta.amp.autocast(make(Objective(model, task.loss)), PRECISION)
        one = meta.array(1.0, device=place.device)
        given = [(one, (meta.array(x),), (meta.array(y),)) for x, y in batches]

        def compiled() -> Call:
            with meta.PassContext(**place.passes):
                executable = self.executable = meta.vm.compile(run, *given[0])
            return lambda number: executable(*given[number]).torch()

        return compiled


def _batches(task: Task, name: str, place: RankSetup) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a rank's part of each batch, or all of it."""
    inputs, targets = task.batch()
    assert isinstance(inputs, torch.Tensor)
    found = []
    for x, y in zip(inputs.chunk(BATCHES), targets.chunk(BATCHES), strict=True):
        own = slice(0, None)
        if name != JOINED:
            part = len(x) // place.most
            own = slice(place.rank * part, (place.rank + 1) * part)
        found.append((x[own].contiguous().to(place.device), y[own].contiguous().to(place.device)))
    return found


class _TorchObjective(nn.Module):
    """The loss of a model."""

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], torch.Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(x), target)


def _data_parallel(
    row: RankRow, task: Task, model: nn.Module, batches: list[Any], place: RankSetup
) -> Call:
    model = _laid_out(row, model, batches)
    run: Any = _TorchObjective(model, task.their_loss)
    if place.ranks > 1:
        run = nn.parallel.DistributedDataParallel(
            run,
            device_ids=None if place.kind == "cpu" else [torch.device(place.device).index],
            gradient_as_bucket_view=True,
            broadcast_buffers=False,  # those of batch normalisation are each rank's own
        )
        if place.reduce_dtype not in (None, "float32"):
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            hooks = {
                "bfloat16": default_hooks.bf16_compress_hook,
                "float16": default_hooks.fp16_compress_hook,
            }
            run.register_comm_hook(None, hooks[place.reduce_dtype])
    if place.compiler:
        run = torch.compile(run)
    return _stepping(model, run, batches, place)


def _one_program(
    row: RankRow, task: Task, model: nn.Module, batches: list[Any], place: RankSetup
) -> Call:
    model = _laid_out(row, model, batches)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=WEIGHT_DECAY, fused=True)
    over, dtype = "dp" if place.ranks > 1 else None, getattr(torch, PRECISION)
    step = step_of_meta(model, optimizer, task.their_loss, autocast=dtype, over=over)
    return lambda number: step(*batches[number])


def _fully_sharded(
    row: RankRow, task: Task, model: nn.Module, batches: list[Any], place: RankSetup
) -> Call:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = _laid_out(row, model, batches, parameters=False)  # FSDP2 takes compact ones only
    # Batch normalisation takes parameters in float32 only, which autocast is for.
    half = None if row.images else getattr(torch, PRECISION)
    policy = MixedPrecisionPolicy(half, getattr(torch, place.reduce_dtype or "float32"))
    mesh = place.mesh.device_mesh
    blocks = [m for m in model.modules() if type(m).__name__ == row.block]
    assert blocks, f"the model has no {row.block}"
    for block in blocks:
        if place.compiler:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    loss = torch.compile(task.their_loss) if place.compiler else task.their_loss

    def run(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        # Its parameters are in half precision by themselves.
        with torch.autocast(place.kind, enabled=row.images):
            found = scores(model(x))
        return loss(found, target)

    return _stepping(model, run, batches, place)


def _laid_out(
    row: RankRow, model: nn.Module, batches: list[Any], parameters: bool = True
) -> nn.Module:
    """Return a model for training; its inputs, and parameters, are in the layout that is faster."""
    if row.images:
        if parameters:
            model = model.to(memory_format=torch.channels_last)
        for i, (x, y) in enumerate(batches):
            batches[i] = x.to(memory_format=torch.channels_last), y
    return model.train()


def _stepping(
    model: nn.Module,
    loss_of: Callable[[Any, Any], torch.Tensor],
    batches: list[Any],
    place: RankSetup,
) -> Call:
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=WEIGHT_DECAY, fused=True)
    mixed = partial(torch.autocast, place.kind, getattr(torch, PRECISION))
    step = training_step(loss_of, optimizer, mixed, optimizer.step)
    return lambda number: step(*batches[number])
