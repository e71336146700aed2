"""Libraries and other files of NVIDIA's pip packages, which torch brings along."""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from functools import cache


@cache
def load(name: str) -> ctypes.CDLL | None:
    """Return the library ``name``, such as "libcudnn.so.9", of the packages or else the system."""
    for path in [*in_packages(f"*/lib/{name}"), name]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue  # not there: the next place
    return None


def in_packages(pattern: str) -> list[str]:
    """Return the files that match ``pattern`` below the namespace package ``nvidia``."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return sorted(
        path for place in places or () for path in glob.glob(os.path.join(place, pattern))
    )
