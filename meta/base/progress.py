"""Progress bars, as META_PROGRESS says: on a terminal (auto), always (on) or never (off)."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from meta.base import config
from meta.base.errors import ArgumentError

_DISABLE = {"auto": None, "on": False, "off": True}


def bar(total: int | None, what: str, delay: float = 0.0, done: int = 0, shown: bool = True) -> Any:
    """Return a tqdm bar of ``total`` steps (None: nobody knows), a context manager, on stderr.

    It is shown when ``delay`` seconds have passed: what is quick needs none. ``done`` steps were
    done before. shown: whether by this process at all.
    Raises ArgumentError if META_PROGRESS is none of auto, on and off.
    """
    wanted = config.get("META_PROGRESS")
    if wanted not in _DISABLE:
        raise ArgumentError(
            "META_PROGRESS cannot be read", expected=" or ".join(_DISABLE), found=repr(wanted)
        )
    disable = _DISABLE[wanted] if shown else True
    return tqdm(total=total, desc=what, disable=disable, leave=False, delay=delay, initial=done)
