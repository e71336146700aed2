"""`define`: an operator of our own among PyTorch's, in its namespace ``meta``.

It stands in a graph for what PyTorch has no operator for. A converter makes base operators of it,
as of any other; it also runs in PyTorch: in a graph that is no program, or as a call back. It is
defined by its schema, below what `torch.library.custom_op` adds: a call takes 3 us of the host,
where that takes 9 and more. What that does for its callers an operator does itself: it returns new
tensors, and counts what it writes (`torch.autograd.graph.increment_version`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch

from meta.base.errors import GradientError

NAMESPACE = "meta"
_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def define(
    schema: str,
    run: Callable[..., Any],
    said: Callable[..., Any] | None = None,
    gradient: tuple[Callable[..., Any], Callable[..., Any]] | None = None,
) -> torch._ops.OpOverload:
    """Define an operator, and return it.

    Parameters
    ----------
    schema: its name, arguments and results as torch writes them. run: what it does, of which
    autocast changes no dtype. said: returns results of the right types, uninitialised, for tensors
    without data; by default ``run`` does.
    gradient: what computes the gradients of its arguments, and what saves something for that, as
    `torch.library.register_autograd` takes them. Without, who asks for one gets a GradientError.
    """
    name = schema[: schema.index("(")]

    @wraps(run)
    def in_given_dtypes(*args: Any) -> Any:
        with torch._C._DisableAutocast():
            return run(*args)

    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, in_given_dtypes, "CompositeExplicitAutograd")
    full = f"{NAMESPACE}::{name}"
    if said is not None:
        torch.library.register_fake(full, said, lib=_LIBRARY)
    overload: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    if not overload._schema.is_mutable:
        backward, save = gradient or (partial(_refuse, full), None)
        torch.library.register_autograd(full, backward, setup_context=save, lib=_LIBRARY)
    return overload


def _refuse(name: str, *_: Any) -> Any:
    raise GradientError(f"{name} has no gradient", hint="torch.compile computes first orders only")
