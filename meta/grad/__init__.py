"""Floor 3: gradients. One registry serves the eager tape and the autodiff pass.

`grad` differentiates what was computed eagerly, any number of times; `value_and_grad` a function
by its arguments, eagerly and in traced code.

``<family>.py`` holds the rules of the operators of ``meta/op/<family>.py``, in the same order.
"""

import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any

from meta.base.did_you_mean import unknown_attribute
from meta.base.errors import ArgumentError
from meta.grad.core import grad, value_and_grad

__all__ = ["grad", "value_and_grad"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.grad", name, __all__)


class _Module(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ArgumentError: what is called is a function of JAX."""
        raise ArgumentError(
            "meta.grad is a module",
            hint="meta.grad.value_and_grad(f)(x)[1], or meta.grad.grad(y, x) of what was computed",
        )


sys.modules[__name__].__class__ = _Module
