"""What the programs of a training step were made of besides its inputs, looked at in each call."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from meta.base.errors import ArgumentError
from meta.frontend.torch.export import LOCK

NUMBERS = (bool, int, float, str, type(None))


class Guards:
    """A module's tensors, modules and hooks, the numbers that its code read while it was exported,
    the tensors that are constants of a program, and which parameters the optimizer's groups have.

    ArgumentError for what PyTorch would do in a backward pass or a step, and no program does.
    """

    def __init__(self, module: nn.Module, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._modules = list(module.modules())[1:]
        self._parameters = list(module.parameters())
        for m in self._modules:
            if isinstance(m, nn.DataParallel | nn.parallel.DistributedDataParallel):
                raise ArgumentError(
                    f"{type(m).__name__} exchanges gradients itself",
                    hint='the module within it, model.module, and over="dp"',
                )
        if self._hooked():
            raise ArgumentError(
                "no program calls the hooks of a gradient or of an optimizer's steps",
                hint="call what they do behind each step; or torch.compile(model, backend='meta')",
            )
        members = [d for m in self._modules for d in (m._parameters, m._buffers, m._modules)]
        hooks = [d for m in self._modules for d in (m._forward_hooks, m._forward_pre_hooks)]
        self._members = [(d, n, x) for d in members for n, x in d.items()]
        self._sized: list[Any] = [*members, *hooks]
        self._size = sum(map(len, self._sized))
        self._groups = self._parameters_of_groups()
        self._numbers: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self._constants: list[tuple[Tensor, int]] = []

    def hold(self) -> bool:
        """Whether all is as it was."""
        return (
            sum(map(len, self._sized)) == self._size
            and all(d.get(n) is x for d, n, x in self._members)
            and all(_same(d.get(n), x) for (_, n), (d, x) in self._numbers.items())
            and all(x._version == version for x, version in self._constants)
            and self._groups == self._parameters_of_groups()
            and not self._hooked()
        )

    def modes(self) -> tuple[Any, ...]:
        """Return which modules are in train mode, and which parameters require a gradient."""
        trained = tuple([p.requires_grad for p in self._parameters])
        return tuple([m.training for m in self._modules]), trained

    def watch(self, constants: Iterable[Tensor]) -> None:
        """Take tensors that are constants of a program."""
        self._constants += [(x, x._version) for x in constants if not x.is_inference()]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Take the numbers of the modules that are read in a block."""
        known = {id(m): m.__dict__ for m in self._modules}

        def read(module: Any, name: str) -> Any:
            value = object.__getattribute__(module, name)
            own = known.get(id(module), {})
            if name in own and name != "training" and _is_constant(value):
                self._numbers.setdefault((id(own), name), (own, copy(value)))
            return value

        def write(module: Any, name: str, value: Any) -> None:
            _, before = self._numbers.get((id(module.__dict__), name), (None, None))
            if before is not None and not _same(before, value):
                raise ArgumentError(
                    f"{type(module).__name__} reads its attribute {name!r} and writes to it, which "
                    "no program does",
                    found=f"{before!r}, then {value!r}",
                    hint="a buffer: self.register_buffer(name, torch.tensor(0))",
                )
            own_write(module, name, value)

        with LOCK:
            own_write = nn.Module.__setattr__
            nn.Module.__getattribute__ = read  # type: ignore[method-assign]
            nn.Module.__setattr__ = write  # type: ignore[method-assign, assignment]
            try:
                yield
            finally:
                del nn.Module.__getattribute__
                nn.Module.__setattr__ = own_write  # type: ignore[method-assign]

    def _hooked(self) -> bool:
        of_steps = (
            *self._optimizer._optimizer_step_pre_hooks.values(),
            *self._optimizer._optimizer_step_post_hooks.values(),
        )
        return not {_before, _after}.issuperset(of_steps) or any(
            p._backward_hooks or p._post_accumulate_grad_hooks for p in self._parameters
        )

    def _parameters_of_groups(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in self._optimizer.param_groups]


def register(optimizer: Optimizer, step: Any) -> None:
    """Let a training step make the steps of an optimizer, and know of those that PyTorch makes."""
    _STEPS[optimizer] = weakref.ref(step)
    if _after not in optimizer._optimizer_step_post_hooks.values():
        optimizer.register_step_pre_hook(_before)
        optimizer.register_step_post_hook(_after)


def require_last(optimizer: Optimizer, step: Any) -> None:
    """Raise ArgumentError if another training step was made of an optimizer since this one."""
    if _STEPS[optimizer]() is not step:
        raise ArgumentError(
            "another training step was made of this optimizer, which counts by itself",
            hint="one step, of a loss with an argument for what differs: each number and string "
            "that it is called with has its own program",
        )


_STEPS: weakref.WeakKeyDictionary[Optimizer, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""The last training step that was made of an optimizer."""


def _before(optimizer: Optimizer, *_: Any) -> None:
    if (step := _STEPS[optimizer]()) is not None:
        step.before_step_of_torch()


def _after(optimizer: Optimizer, *_: Any) -> None:
    if (step := _STEPS[optimizer]()) is not None:
        step.after_step_of_torch()


def _is_constant(value: Any) -> bool:
    """Whether a module's attribute is a constant of a program: a number, or some of them."""
    several = value.values() if type(value) is dict else value if type(value) is list else ()
    return type(value) in NUMBERS or (bool(several) and all(type(x) in NUMBERS for x in several))


def _same(x: Any, y: Any) -> bool:
    return x is y or (type(x) is type(y) and x == y)
