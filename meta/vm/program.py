"""`Program`: what the executors run, a module together with the arrays that its last parameters are
bound to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.ir import Module
from meta.runtime.ndarray import ndarray


@dataclass(frozen=True, slots=True)
class Program:
    """A traced model.

    Attributes
    ----------
    module: its main takes the inputs, then one parameter per array in ``arrays``.
    arrays: parameters and running statistics of the model, shared with it (what main writes, the
    model sees).
    flatten: from the user's call arguments to main's inputs, checking that they fit what was
    traced.
    unflatten: from main's flat results to what the user's function returned.
    """

    module: Module
    arrays: tuple[ndarray, ...]
    flatten: Callable[..., list[ndarray]]
    unflatten: Callable[[Any], Any]
