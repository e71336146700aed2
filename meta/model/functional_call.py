"""`functional_call`: a model called with other arrays in place of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from meta import op
from meta.base.call_context import current
from meta.base.errors import ArgumentError, UnknownName
from meta.base.registry import nearest
from meta.model.model import Model
from meta.op.core.tracing import Trace
from meta.runtime.ndarray import as_array, ndarray


def functional_call(model: Model, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Return ``model(*args, **kwargs)`` with other arrays in place of parameters and buffers.

    state: arrays by the names that ``model.state()`` has; what is left out is the model's own. Each
    has the shape and the dtype of the one that it replaces. The model is as before afterwards. With
    it, parameters are arguments of a function, which `meta.grad` and `meta.vmap` transform.

    Raises UnknownName for a name that the model does not have, and ArgumentError for an array of
    another shape or dtype. What the model writes to a replaced array is written to the replacement.

    >>> import meta
    >>> layer = meta.model.Linear(2, 1, bias=False)
    >>> loss = lambda w, x: meta.sum(meta.model.functional_call(layer, {"weight": w}, x))
    >>> meta.grad(loss)(meta.ones((1, 2)), meta.array([[3.0, 4.0]])).tolist()
    [[3.0, 4.0]]
    """
    own = model.state()
    pairs = []
    for name, value in state.items():
        if name not in own:
            raise UnknownName(f"the model has no array {name!r}", hint=nearest(name, own))
        handler, old = current(), own[name]
        new: Any = handler.lift_tensor(value) if isinstance(handler, Trace) else as_array(value)
        if tuple(new.shape) != old.shape or new.dtype != old.dtype:
            raise ArgumentError(
                f"another array cannot stand for {name!r}",
                expected=f"{old.dtype}{list(old.shape)}",
                found=f"{new.dtype}{list(new.shape)}",
            )
        pairs.append((old, new))
    with _bound(pairs) if isinstance(current(), Trace) else _replaced(pairs):
        return model(*args, **kwargs)


@contextmanager
def _bound(pairs: list[tuple[ndarray, Any]]) -> Iterator[None]:
    """Let values of a trace stand for arrays."""
    handler = current()
    assert isinstance(handler, Trace)
    before = [handler.bound(old) for old, _ in pairs]
    for old, new in pairs:
        handler.bind(old, new)
    try:
        yield
    finally:
        for (old, _), symbol in zip(pairs, before, strict=True):
            handler.bind(old, symbol)


@contextmanager
def _replaced(pairs: list[tuple[ndarray, ndarray]]) -> Iterator[None]:
    """Let arrays have the memory and the history of others."""
    # A leaf is known by its array: the copy of one leads to it.
    new = [op.copy(n) if n.tracked and n.node is None else n for _, n in pairs]
    before = [(a.tensor, a.key, a.node, a.tracked) for a, _ in pairs]
    for (old, _), n in zip(pairs, new, strict=True):
        old.tensor, old.key, old.node, old.tracked = n.tensor, n.key, n.node, n.tracked
    try:
        yield
    finally:
        for (old, _), fields in zip(pairs, before, strict=True):
            old.tensor, old.key, old.node, old.tracked = fields
