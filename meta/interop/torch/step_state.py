"""What all programs of a training step share: arrays on the tensors of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from meta.base.errors import ArgumentError
from meta.frontend.core.memory_order import Order, is_contiguous_order, order_of
from meta.interop.torch.loss_scale import SharedLossScale
from meta.interop.torch.optimizers import SharedState
from meta.optim.data_parallel import DataParallel
from meta.optim.step import Accumulation
from meta.runtime.ndarray import array, ndarray


@dataclass
class StepState:
    """What all programs of a step have in common: arrays on the tensors of PyTorch's."""

    arrays: dict[str, ndarray]
    orders: dict[str | int, Order]
    shared: SharedState
    loss_scale: SharedLossScale | None
    accumulation: Accumulation | None
    addresses: Callable[[], list[int]]
    at: list[int]
    setting: Any
    updated: frozenset[str] | None = None

    @classmethod
    def of(
        cls,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None,
        accumulate: int,
        setting: Any,
        ranks: DataParallel | None,
    ) -> StepState:
        """Return arrays for the tensors as they are; ArgumentError for what does not fit."""
        parameters = dict(objective.named_parameters(remove_duplicate=False))
        tensors = {**parameters, **dict(objective.named_buffers(remove_duplicate=False))}
        names: dict[int, str] = {}
        for name, p in parameters.items():
            names.setdefault(id(p), name)
        _require_fit(tensors, names, optimizer)
        by_id = {id(t): array_on(t) for t in tensors.values()}
        arrays = {name: by_id[id(t)] for name, t in tensors.items()}
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, p in parameters.items():
            arrays[name].requires_grad = p.requires_grad and id(p) in updated
        orders: dict[str | int, Order] = {n: o for n, t in tensors.items() if (o := own_order(t))}
        of = {n: a for n, a in arrays.items() if a.requires_grad and n in names.values()}
        parts = {} if ranks is None else {n: ranks.placement(a) for n, a in of.items()}
        shared = SharedState(optimizer, names, arrays, orders, parts)
        device = shared.rates[0].device
        if scaler is not None and shared.on_host:
            raise ArgumentError(
                "the optimizer counts its steps on the host, which does not know which of them a "
                "scaler leaves out",
                expected="an optimizer that counts on the device",
                found=type(optimizer).__name__,
                hint="make it with fused=True, or with capturable=True",
            )
        accumulation = None
        if accumulate > 1:
            place = (lambda a: a.placement) if ranks is None else ranks.gradient_placement
            accumulation = Accumulation(of, accumulate, {n: place(a) for n, a in of.items()})
            accumulation.factor = 1.0  # the seed has it, as it has in PyTorch's loops
        return cls(
            arrays,
            orders,
            shared,
            None if scaler is None else SharedLossScale(scaler, str(device)),
            accumulation,
            lambda: list(map(Tensor.data_ptr, tensors.values())),
            list(map(Tensor.data_ptr, tensors.values())),
            setting,
        )

    def seed(self, dtype: str) -> ndarray:
        """Return the gradient of the mean loss by the loss of a call."""
        count = 1 if self.accumulation is None else self.accumulation.count_to
        return array(1.0 / count, dtype, device=self.shared.rates[0].device)

    def is_current(self) -> bool:
        """Whether the tensors, and the optimizer's state, are where they were."""
        return self.shared.is_current() and self.addresses() == self.at

    def recount(self, setting: Any) -> None:
        """Take over the counts after a step of PyTorch's optimizer. Before the first step of a
        program, and where that is another for what is trained, PyTorch's state is taken anew.
        """
        if self.updated is None or self.setting != setting:
            self.at = []
        else:
            self.shared.recount()

    def commit(self, updated: frozenset[str]) -> None:
        """Give the optimizer its state: of the parameters that a program updates.

        ArgumentError if another program updates others: torch counts the steps of each.
        """
        if self.updated is None:
            self.shared.commit(updated)
            self.updated = updated
        elif updated != self.updated:
            raise ArgumentError(
                "for these inputs, other parameters have a gradient than before",
                expected="the same parameters in each step",
                found=", ".join(sorted(updated ^ self.updated)),
                hint="a training step of its own for each kind of inputs, each with an optimizer",
            )


def _require_fit(
    tensors: Mapping[str, Tensor], names: Mapping[int, str], optimizer: torch.optim.Optimizer
) -> None:
    """Raise ArgumentError for tensors that no program can write where they lie."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if id(p) not in names:
                raise ArgumentError(
                    "the optimizer has a parameter that the model has not",
                    found=f"a parameter of shape {list(p.shape)}",
                    hint="make the optimizer of model.parameters(), after model.to(...)",
                )
    devices = {str(t.device) for t in tensors.values()}
    if len(devices) != 1:
        raise ArgumentError(
            "the model is not on one device", found=", ".join(sorted(devices)) or "no tensor"
        )
    for name, tensor in tensors.items():
        if is_traceable_wrapper_subclass(tensor):
            raise ArgumentError(
                f"{name.removeprefix('model.')} is a {type(tensor).__name__}, which consists of "
                "other tensors",
                expected="a tensor of one memory",
            )
        if order_of(tensor) is None:
            raise ArgumentError(
                f"{name.removeprefix('model.')} has gaps in memory, or repeats elements",
                expected="a tensor that is contiguous but for the order of its axes",
                found=f"shape {list(tensor.shape)}, strides {list(tensor.stride())}",
                hint="make it of tensor.contiguous()",
            )


def own_order(tensor: Tensor) -> Order | None:
    """Return the order of axes in which a tensor is compact; None for its own, or for none."""
    order = None if tensor.is_contiguous() else order_of(tensor)
    return None if order is None or is_contiguous_order(order) else order


def array_on(tensor: Tensor) -> ndarray:
    """Return an array on a tensor, with its axes in the order in which it is compact."""
    order = own_order(tensor)
    return ndarray(tensor.detach() if order is None else tensor.detach().permute(order))
