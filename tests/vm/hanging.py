"""Dialects that hang, end their process, or are merely under suspicion. Another process imports
this module by its name, so that they are registered when it is imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from meta.base.registry import OPERATORS
from meta.dialect.core import HANDWRITTEN, Dialect, OpEnv
from meta.op.core import CallValues
from tests.registered import remove_dialects

OP = OPERATORS["sinh"]
LIMIT = 2.5
SLEEP = 600.0


def register(name: str, make: Callable[[CallValues], OpEnv]) -> Dialect:
    dialect = Dialect(name, devices=("cpu",), plevel=HANDWRITTEN + 1, time_limit=LIMIT)
    dialect.op(OP)(make)
    return dialect


def hangs_in_compiler(call: CallValues) -> OpEnv:
    time.sleep(SLEEP)
    raise AssertionError


def kernel(run: Callable[[torch.Tensor], Any]) -> Callable[[CallValues], OpEnv]:
    def make(call: CallValues) -> OpEnv:
        return OpEnv(run, allocates=True)

    return make


def right(x: torch.Tensor) -> torch.Tensor:
    return torch.sinh(x)


def raises(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such instruction")


MADE = [
    register("hanging_compiler", hangs_in_compiler),
    register("hanging_kernel", kernel(lambda x: time.sleep(SLEEP))),
    register("hanging_dies", kernel(lambda x: os._exit(3))),
    register("hanging_raises", kernel(raises)),
    register("hanging_not", kernel(right)),
]


def remove() -> None:
    """Remove the dialects from this process."""
    remove_dialects(*MADE)
