"""Floor 3: backends. Each folder but `core` and `vendors` is one dialect; its files are the
operator families.

To add a backend, add a folder whose ``__init__.py`` makes a `Dialect`, or ship one in a package of
your own.
"""

from meta.dialect.core import (
    COMPILER,
    FUSED_ONLY,
    HANDWRITTEN,
    LIBRARY,
    REFERENCE,
    Dialect,
    OpEnv,
    Unsupported,
    ask,
    exclude,
    only,
    prefer,
    tunable,
)
from meta.dialect.core.catalog import declare_all

declare_all()

__all__ = [
    "COMPILER",
    "FUSED_ONLY",
    "HANDWRITTEN",
    "LIBRARY",
    "REFERENCE",
    "Dialect",
    "OpEnv",
    "Unsupported",
    "ask",
    "exclude",
    "only",
    "prefer",
    "tunable",
]
