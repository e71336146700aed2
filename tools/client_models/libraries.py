"""The libraries of models, by name, and the outcome of one of their models.

They are here, and not in the command's own file, because a process of a pool imports by name what
it is to call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tools.client_models.measure import Outcome, measure
from tools.client_models.row import Row


def _transformers() -> dict[str, Row]:
    from tools.client_models.transformers_rows import ROWS

    return ROWS


def _torchvision() -> dict[str, Row]:
    from tools.client_models.vision_rows import torchvision_rows

    return torchvision_rows()


def _timm() -> dict[str, Row]:
    from tools.client_models.vision_rows import timm_rows

    return timm_rows()


LIBRARIES: dict[str, Callable[[], dict[str, Row]]] = {
    "transformers": _transformers,
    "torchvision": _torchvision,
    "timm": _timm,
}


@cache
def rows(library: str) -> dict[str, Row]:
    """Return a library's rows; ImportError if it is not installed."""
    return LIBRARIES[library]()


def outcome(dialect: str | None, stages: list[str], key: tuple[str, str]) -> Outcome:
    """Return what becomes of a model, by library and name."""
    library, name = key
    return measure(name, rows(library)[name], dialect, stages)
