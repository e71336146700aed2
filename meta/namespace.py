"""What `meta` shows: everything but its version. Operators and functions come by their names."""

from __future__ import annotations

import sys
from math import e, inf, nan, pi

from meta import (
    amp,
    analysis,
    array_api,
    dialect,
    distributed,
    fft,
    frontend,
    grad,
    ir,
    language,
    linalg,
    model,
    op,
    optim,
    passes,
    random,
    task,
    train,
    vm,
)
from meta.base import errors
from meta.base.device import Device as device
from meta.base.dtype import DTYPES, NAMED
from meta.base.dtype_info import can_cast, finfo, iinfo, isdtype, result_type
from meta.base.errors import MetaError
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.dialect.core.catalog import discover
from meta.frontend import explain_compile, to_onnx
from meta.grad.core import no_grad
from meta.model import Model, cond, custom_jvp, custom_vjp, scan, vmap, while_loop
from meta.op.core.promotion import strict_dtypes
from meta.runtime.ndarray import array, asarray, from_dlpack, ndarray
from meta.runtime.num_threads import get_num_threads, set_num_threads
from meta.vm.eager.nan_checks import debug_nans
from meta.vm.inspect.explain import explain
from meta.vm.modules import compile_model, load_module
from meta.vm.namespace import PassContext, measure

newaxis = None
"""An index that inserts an axis: ``x[meta.newaxis]``."""

# A dtype is its name: ``meta.float32`` is "float32".
globals().update(NAMED)

__all__ = [
    *DTYPES,
    "MetaError",
    "Model",
    "PassContext",
    "amp",
    "analysis",
    "array",
    "array_api",
    "asarray",
    "debug_nans",
    "device",
    "can_cast",
    "compile_model",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "dialect",
    "distributed",
    "e",
    "errors",
    "explain",
    "explain_compile",
    "fft",
    "finfo",
    "from_dlpack",
    "frontend",
    "get_num_threads",
    "grad",
    "iinfo",
    "inf",
    "ir",
    "isdtype",
    "language",
    "linalg",
    "load_module",
    "measure",
    "model",
    "nan",
    "ndarray",
    "newaxis",
    "no_grad",
    "op",
    "optim",
    "passes",
    "pi",
    "random",
    "result_type",
    "scan",
    "set_num_threads",
    "strict_dtypes",
    "task",
    "to_onnx",
    "train",
    "vm",
    "vmap",
    "while_loop",
]


OPERATORS.finders.append(discover)  # what the packages of others define, once all of ours is there
_shown = vars(sys.modules["meta"])
_shown.update({name: globals()[name] for name in (*__all__, "__all__")})
OPERATORS.show_in(_shown)
FUNCTIONS.show_in(_shown)
