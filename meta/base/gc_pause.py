"""A pause of the garbage collector while something long makes many objects and no cycles.

Python's collector runs by the number of new objects, and a full collection looks at everything that
was ever imported: a quarter of a second with torch and TVM in memory.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
_was_on = False


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect no garbage in the block, on any thread; objects without cycles go as ever.

    Blocks nest, and may overlap on several threads: the last that ends switches collection on
    again, if it was on before the first.
    """
    global _inside, _was_on
    with _lock:
        if _inside == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _was_on:
                gc.enable()
