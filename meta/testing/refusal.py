"""What an operator refuses: the check that follows from an `ErrorSample` of an `OpCase`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from meta.base.registry import OPERATORS
from meta.model import trace
from meta.op.core import tree
from meta.runtime.ndarray import ndarray
from meta.testing.case import ErrorSample, OpCase


def check_error(case: OpCase, one: ErrorSample, device: str = "cpu") -> None:
    """The call raises the error that is expected, eagerly and while it is traced.

    The error names the operator and the user's line, and its message matches.
    """
    dtype = "float32" if "float32" in case.dtypes or not case.dtypes else case.dtypes[0]
    leaves, structure = tree.flatten(one.make(dtype))
    tensors = [ndarray(t.to(device)) for t in leaves if isinstance(t, torch.Tensor)]
    assert len(tensors) == len(leaves), f"{case.op}({one}): only tensors are given as leaves"

    def call(*tensors: Any) -> Any:
        args, kwargs = tree.unflatten(structure, list(tensors))
        return OPERATORS[case.op](*args, **kwargs)

    _check_refused(lambda: call(*tensors), case, one, "eager")
    _check_refused(lambda: trace(call).program(*tensors), case, one, "traced")


def _check_refused(run: Callable[[], Any], case: OpCase, one: ErrorSample, how: str) -> None:
    what = f"{how} {case.op}({one})"
    try:
        result = run()
    except one.raises as error:
        message = str(error)
        assert re.search(one.match, message), f"{what} does not say {one.match!r} but\n{message}"
        assert error.op == case.op, f"{what} names the operator {error.op}"
        assert error.span is not None, f"{what} names no line"
    else:
        raise AssertionError(f"{what} is not refused; it gives {result!r}")
