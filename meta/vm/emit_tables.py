"""What the functions of a program share while they are emitted: constants, kernels, and the
functions that are still to be emitted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from meta.base.device import Device
from meta.dialect.core import IN_PLACE
from meta.dialect.core.dispatch import cache_key
from meta.ir import Constant, Function, Module, Var
from meta.passes.buffers import Summaries
from meta.vm.code import Kernel, KernelRef


class Tables:
    """What the functions of a program share.

    Attributes
    ----------
    functions, types: those of the module. constants, kernels: each is there once.
    waiting: functions to emit: name, function, and the variables that come before its parameters.
    """

    def __init__(self, module: Module, device: Device) -> None:
        self.functions, self.types, self.device = module.functions, module.types, device
        self._module = module
        self.constants: list[Any] = []
        self.kernels: list[Kernel] = []
        self._constant_numbers: dict[Any, int] = {}
        self._kernel_numbers: dict[Any, int] = {}
        self._names = set(module.functions)
        self._needed: set[str] = set()
        self.waiting: list[tuple[str, Function, tuple[Var, ...]]] = []

    @cached_property
    def summaries(self) -> Summaries:
        """What functions write and return, but for what `inplace_update` lets them write over:
        values which nobody needs any more.
        """
        functions = {
            name: replace(f, attrs={k: v for k, v in f.attrs.items() if k != IN_PLACE})
            for name, f in self.functions.items()
        }
        return Summaries(self._module.with_functions(functions))

    def use_global(self, name: str) -> str:
        """Note that a function of the module is needed; return its name."""
        if name not in self._needed:
            self._needed.add(name)
            self.waiting.append((name, self.functions[name], ()))
        return name

    def use_closure(self, hint: str, function: Function, captured: tuple[Var, ...]) -> str:
        """Note that a closure's function is needed; return the name that it gets."""
        name, number = hint, 1
        while name in self._names:
            number += 1
            name = f"{hint}_{number}"
        self._names.add(name)
        self.waiting.append((name, function, captured))
        return name

    def constant(self, value: Constant | bool | int | float) -> int:
        """Return the number of a constant: an IR node, whose tensor is put on the device, or a
        number.
        """
        key = value if isinstance(value, Constant) else cache_key(value)
        if key not in self._constant_numbers:
            self._constant_numbers[key] = len(self.constants)
            if isinstance(value, Constant):
                self.constants.append(value.data.to(str(self.device)).contiguous())
            else:
                self.constants.append(value)
        return self._constant_numbers[key]

    def kernel(self, kernel: Kernel) -> int:
        """Return the number of a kernel."""
        key = (kernel.operator, cache_key(kernel.args)) if isinstance(kernel, KernelRef) else kernel
        if key not in self._kernel_numbers:
            self._kernel_numbers[key] = len(self.kernels)
            self.kernels.append(kernel)
        return self._kernel_numbers[key]
