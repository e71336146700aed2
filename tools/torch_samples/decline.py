"""How an adapter says that a sample does not run: it is outside of `meta`, or it is a gap."""

from __future__ import annotations

from enum import Enum


class Outside(Enum):
    """What only torch has. A sample that asks for one of these does not count against `meta`."""

    DEVICE = "where a tensor lives is an option of the call"
    DTYPE = "a dtype that meta does not have, or float8 alone"
    INTERNAL = "a function that torch itself uses, or a test of its own"
    LAYOUT = "sparse and nested tensors"
    MEMORY = "strides, storage and formats of memory: arrays are compact"
    CUDA = "code for CUDA alone"
    PACKED = "a factor in the form in which LAPACK keeps it"
    RANDOM = "an approximation that hangs on random numbers"
    SOURCE = "a kernel given as source text"
    WRONG = "a result of torch's that is NaN where the function has a number"
    WRITES = "an argument that is changed besides the result"


class Declined(Exception):
    """The sample asks for something that `meta` does not offer; the message says what."""


class IsOutside(Exception):
    """The sample asks for something that only torch has; ``args[0]`` is the `Outside`."""


def decline_if(condition: object, reason: str) -> None:
    """Raise Declined for a sample that fulfils the condition."""
    if condition:
        raise Declined(reason)


def outside_if(condition: object, reason: Outside) -> None:
    """Raise IsOutside for a sample that fulfils the condition."""
    if condition:
        raise IsOutside(reason)
