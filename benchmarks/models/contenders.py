"""What is compared: `Contender`, a row under one library, to be called."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

import meta
import meta.interop.torch
from meta.model import Model, empty_init
from meta.optim import with_adamw, with_sgd
from meta.train.objective import Objective
from models.task import Inputs, Row, Task, TorchTask, scores, state_of

ON_CPU = ("meta", "eager", "compile")
NAMES = (*ON_CPU, "reduce-overhead")
DYNAMO = "dynamo"
"""The contender of dynamo_cuda.py: PyTorch's model, compiled by the backend "meta"."""
AUTOTUNED = "max-autotune"
"""The contender of tuning.py: torch.compile that measures its kernels, with CUDA graphs."""
TUNED_KERNELS = "max-autotune-no-cudagraphs"
"""The same without CUDA graphs."""
STEP = "training_step"
"""The contender of step_cuda.py: PyTorch's model and optimizer, in `meta.interop.torch`."""
CAPTURED = "captured"
"""Its peer: torch.compile of the loss, a fused optimizer, and the whole step as one CUDA graph."""
SYMBOLIC = "symbolic"
"""`meta`, compiled for inference on any batch up to twice the row's."""
WEIGHT_DECAY = 0.01
Call = Callable[[], torch.Tensor]


class Contender:
    """A row under one library, with its model and inputs on the device, not compiled yet.

    All start from the same random parameters. ``compiled()`` returns what runs it once: the loss of
    a training step, or the scores, as a tensor. torch.compile does nothing before the first call.
    ``state()`` is a copy of what training changes, under the names of `meta`.
    META_TF32 is to be set for a row in tf32.

    Attributes
    ----------
    inputs, executable: of `meta`, what is compiled and, later, what was made of it; else None.
    """

    def __init__(self, row: Row, name: str, device: str, tiny: bool = False) -> None:
        task = row.task(tiny)
        torch.manual_seed(0)
        with torch.device(device):
            theirs = task.theirs()
        self.inputs: tuple[Any, ...] | None = None
        self.executable: Any = None
        if name in ("meta", SYMBOLIC):
            assert isinstance(task, Task), f"the zoo of meta has no {task.what}"
            with meta.device(device), empty_init():
                ours = task.ours()
            ours.load_state_dict(state_of(theirs))
            del theirs
            self.state = lambda: {n: a.torch().detach().clone() for n, a in ours.state().items()}
            self._compiled = self._of_meta(row, task, ours, device, name == SYMBOLIC)
        else:
            self.state = lambda: state_of(theirs)
            make = training_of_torch if row.training else _inference_of_torch
            self._compiled = lambda: make(row, task, theirs, device, name)
        gc.collect()

    def compiled(self) -> Call:
        """Return what runs it."""
        return self._compiled()

    def _of_meta(
        self, row: Row, task: Task, model: Model, device: str, symbolic: bool
    ) -> Callable[[], Call]:
        run, inputs = program(row, task, model, device)
        given, dims = inputs, None
        if symbolic:
            assert not row.training, "a step of training has one batch"
            x = inputs[0]
            given = (meta.ir.TensorType((meta.ir.SymbolicDim("batch"), *x.shape[1:]), x.dtype),)
            dims = {"batch": (1, 2 * x.shape[0])}

        def compiled() -> Call:
            executable = self.executable = meta.vm.compile(run, *given, dims=dims)
            return lambda: executable(*inputs).torch()

        self.inputs = inputs
        return compiled


def program(row: Row, task: Task, model: Model, device: str) -> tuple[Any, tuple[Any, ...]]:
    """Return what `meta.vm.compile` gets for a row, and its inputs."""
    x, target = (meta.array(t, device=device) for t in task.batch())
    if row.training:
        if row.optimizer == "sgd":
            step = with_sgd(row.rate, row.momentum)
        else:
            step = with_adamw(row.rate, weight_decay=WEIGHT_DECAY)
        run = step(Objective(model, task.loss))
        if row.dtype != "float32":
            run = meta.amp.autocast(run, row.precision)
        return run, (meta.array(1.0, device=device), (x,), (target,))
    if x.dtype == "float32":
        x = x.to(dtype=row.dtype)
    return model.to(dtype=row.dtype).eval(), (x,)


def _optimizer(row: Row, model: nn.Module, name: str) -> torch.optim.Optimizer:
    parameters, rate = model.parameters(), row.rate
    if row.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=row.momentum, fused=row.fused)
    return torch.optim.AdamW(
        parameters,
        rate,
        weight_decay=WEIGHT_DECAY,
        fused=row.fused,
        capturable=name == CAPTURED,  # it counts its steps on the device in any case
    )


def _batch(row: Row, task: TorchTask, device: str) -> tuple[Inputs, torch.Tensor]:
    """Return torch's inputs and targets, as dtype and layout of the row are."""

    def placed(x: torch.Tensor) -> torch.Tensor:
        x = x.to(device)
        if row.channels_last:
            x = x.to(memory_format=torch.channels_last)
        return x if row.training or not x.is_floating_point() else x.to(getattr(torch, row.dtype))

    x, target = task.batch()
    inputs = {k: placed(v) for k, v in x.items()} if isinstance(x, dict) else placed(x)
    return inputs, target.to(device)


def _called(run: Callable[..., Any], x: Inputs) -> Any:
    return run(**x) if isinstance(x, dict) else run(x)


def _options(name: str) -> dict[str, Any]:
    if name == DYNAMO:
        import meta.frontend.dynamo  # noqa: F401  (registers the backend)

        return {"backend": "meta"}
    return {"mode": name} if name in (*NAMES[3:], AUTOTUNED, TUNED_KERNELS) else {}


def _allow_tf32(row: Row) -> None:
    if row.precision == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True


def training_of_torch(row: Row, task: TorchTask, model: nn.Module, device: str, name: str) -> Call:
    """Return what makes a step of torch's model with a contender, and returns the loss."""
    _allow_tf32(row)
    model = model.train()
    if row.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = _optimizer(row, model, name)
    x, target = _batch(row, task, device)
    if name == STEP:
        dtype = None if row.dtype == "float32" else getattr(torch, row.dtype)
        step = meta.interop.torch.training_step(model, optimizer, task.their_loss, autocast=dtype)
        return partial(step, x, target)

    def mixed() -> AbstractContextManager[Any]:
        if row.dtype == "float32":
            return nullcontext()
        cached = name != CAPTURED  # a cast that is kept would be outside of the graph
        return torch.autocast(device, getattr(torch, row.dtype), cache_enabled=cached)

    def loss_of(x: Inputs, target: torch.Tensor) -> torch.Tensor:
        return task.their_loss(_called(model, x), target)

    loss = loss_of if name == "eager" else torch.compile(loss_of, **_options(name))
    on_cpu = device == "cpu" and name == "compile"  # on CUDA, fused kernels are as fast as can be
    update = torch.compile(optimizer.step) if on_cpu else optimizer.step
    call = partial(training_step(loss, optimizer, mixed, update), x, target)
    return captured(call, model, optimizer) if name == CAPTURED else call


def training_step(
    loss: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
    mixed: Callable[[], AbstractContextManager[Any]],
    update: Callable[[], Any],
) -> Callable[..., torch.Tensor]:
    """Return what runs forward, in a block of ``mixed``, backward and update, for a batch."""

    def step(*batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        with mixed():
            result = loss(*batch)
        result.backward()
        update()
        return result.detach()

    return step


def captured(call: Call, model: nn.Module, optimizer: torch.optim.Optimizer) -> Call:
    """Return what replays a call as one CUDA graph, as PyTorch's notes on CUDA graphs have it: it
    runs on a stream of its own first, after which model and optimizer are put back.
    """
    before = [t.detach().clone() for t in model.state_dict().values()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    for tensor, value in zip(model.state_dict().values(), before, strict=True):
        tensor.copy_(value)
    for state in optimizer.state.values():
        for value in filter(torch.is_tensor, state.values()):
            value.zero_()

    def replay(_recorded: Call = call) -> torch.Tensor:  # whose batch the graph reads
        graph.replay()
        return result.clone()

    return replay


def _inference_of_torch(
    row: Row, task: TorchTask, model: nn.Module, device: str, name: str
) -> Call:
    _allow_tf32(row)
    model = model.eval().to(getattr(torch, row.dtype))
    if row.channels_last:
        model = model.to(memory_format=torch.channels_last)
    x, _ = _batch(row, task, device)
    run = model if name == "eager" else torch.compile(model, **_options(name))

    def call() -> torch.Tensor:
        with torch.inference_mode():
            return scores(_called(run, x))

    return call
