"""What the constructor of a model takes, for `help` and editors: what its ``build`` does."""

from __future__ import annotations

import inspect
from typing import Any


class ConstructorSignature:
    """The ``__signature__`` of classes of models; an instance has none, as a call of it is
    something else, nor has a class with an ``__init__`` of its own.
    """

    def __init__(self, constructor: Any) -> None:
        self.constructor = constructor

    def __get__(self, instance: Any, owner: Any) -> inspect.Signature:
        if instance is not None or owner.__init__ is not self.constructor:
            raise AttributeError("__signature__")
        found: inspect.Signature = owner.constructor_signature()
        return found
