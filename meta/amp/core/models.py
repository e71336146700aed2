"""`autocast`: a model in mixed precision. What the model is, and how it is traced, is its own."""

from __future__ import annotations

from typing import Any

from meta.amp.core.resolve import require_half
from meta.base.dtype import canonical, is_float
from meta.base.errors import ArgumentError


def autocast(model: Any, dtype: object = "float16", out_dtype: object = None) -> Any:
    """Return a model that computes in mixed precision what ``model`` computes.

    model: a `meta.Model`, also one that trains (`meta.model.value_and_grad`,
    `meta.optim.with_sgd`): forward, backward and update are then cast, each operator by its own
    rule. The result may in turn be given to these.
    dtype: "float16" or "bfloat16". out_dtype: of the floating point results; None: what they have
    without autocast, so that the model is called, and differentiated, as before.

    Parameters, running statistics and whatever else is written in place stay as they are: arrays,
    their names and dtypes are those of ``model``. See `meta.passes.autocast` for what is cast.

    Raises ArgumentError for another dtype or something that is no model, and, when it is first
    called, AutocastError for operators without a cast rule.
    """
    half = require_half(dtype)
    out = None if out_dtype is None else canonical(out_dtype)
    if out is not None and not is_float(out):
        raise ArgumentError("out_dtype is that of floating point results", found=out)
    wrap = getattr(model, "__autocast__", None)
    if wrap is None:
        raise ArgumentError(
            "this has no mixed precision",
            expected="a meta.Model",
            found=type(model).__name__,
            hint="meta.frontend.from_torch(module, (x,)) makes one of a torch module; for calls "
            "there is meta.amp.autocast_scope",
        )
    return wrap(half, out)
