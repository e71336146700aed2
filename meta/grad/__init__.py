"""Floor 3: gradients. One registry serves the eager tape and the autodiff pass.

`grad` differentiates what was computed eagerly, any number of times; it and all others functions by
their arguments, eagerly and in traced code, and nested in one another.

``<family>.py`` holds the rules of the operators of ``meta/op/<family>.py``, in the same order.
"""

import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any

from meta.base.did_you_mean import unknown_attribute
from meta.grad.core import (
    gauss_newton_product,
    grad,
    hessian,
    hvp,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vjp,
)

__all__ = [
    "gauss_newton_product",
    "grad",
    "hessian",
    "hvp",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jvp",
    "linearize",
    "value_and_grad",
    "vjp",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.grad", name, __all__)


class _Module(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `grad` returns: ``meta.grad(f)(x)``, ``meta.grad(y, x)``."""
        return grad(*args, **kwargs)


sys.modules[__name__].__class__ = _Module
