"""Floor 3: gradients. One registry serves the eager tape and the autodiff pass.

`grad` differentiates what was computed eagerly, any number of times; `value_and_grad` a function
by its arguments, eagerly and in traced code.

``<family>.py`` holds the rules of the operators of ``meta/op/<family>.py``, in the same order.
"""

import importlib
import pkgutil

from meta.grad.core import grad, value_and_grad

__all__ = ["grad", "value_and_grad"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
