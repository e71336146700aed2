"""`Converted`: a function of torch, computed by the converters of the overloads that it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch._guards import TracingContext, tracing
from torch._higher_order_ops import effects
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from meta.frontend.aten import AtenError
from meta.frontend.aten.graph import Walker
from meta.op.core import tree
from tools.torch_samples.entries import of_torch
from tools.torch_samples.outside import Declined


class Converted:
    """A function of torch's arguments, with arrays in the place of tensors. It is traced to calls
    of ATen's overloads, and the converters of these (`meta.frontend.aten`) are called with arrays.

    A call with other arguments than the last one traces anew, as values may decide what is called.
    once: whether the first call traces for all.
    """

    def __init__(self, function: Callable[..., Any], once: bool = False) -> None:
        self.function, self.once = function, once
        self._walker: Walker | None = None
        self._of: tuple[str, list[torch.Tensor]] = "", []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return arrays for arrays; Declined, with the reasons, for what is not converted."""
        arrays, structure = tree.flatten((args, kwargs))
        tensors = [a.detach().torch() for a in arrays]
        if self._walker is None or not (self.once or self._is_of(structure, tensors)):
            self._of = repr(structure), [tensor.clone() for tensor in tensors]
            self._walker = self._trace(structure, tensors)
        try:
            return self._walker(*arrays)
        except AtenError as error:
            reasons = dict.fromkeys(f"{f.operator}: {f.why}" for f in error.failures)
            raise Declined("; ".join(reasons)) from error

    def _is_of(self, structure: Any, tensors: list[torch.Tensor]) -> bool:
        """Whether the last trace was of these arguments, a gradient's after the result's, say."""
        of, known = self._of
        return (
            repr(structure) == of
            and [(t.dtype, t.stride()) for t in tensors] == [(t.dtype, t.stride()) for t in known]
            and all(map(torch.equal, tensors, known))
        )

    def _trace(self, structure: Any, tensors: list[torch.Tensor]) -> Walker:
        def run(*tensors: torch.Tensor) -> Any:
            args, kwargs = tree.unflatten(structure, list(tensors))
            return self.function(*args, **kwargs)

        # A number that is read of a tensor on the way, as by `item`, is torch's.
        trace = make_fx(
            dispatch_functionalize(run), tracing_mode="real", _error_on_data_dependent_ops=False
        )
        # That a check of LAPACK's errors is an effect would stand as a token in the trace.
        without_tokens = patch.object(effects, "has_effects", lambda *_: False)
        # Without a context, each node of the trace makes a mode of its own for its metadata, and
        # each mode reads the stack: a third of the time.
        context = tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True)))
        with of_torch(), torch.no_grad(), without_tokens, context:
            module = trace(*tensors)
        module.graph.eliminate_dead_code()
        return Walker(module)
