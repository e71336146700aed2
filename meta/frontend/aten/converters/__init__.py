"""Converters of ATen's overloads, a file for each family."""

from meta.frontend.aten.converters import (  # noqa: F401  # noqa: F401  # noqa: F401  # noqa: F401
    activation,
    creation,
    elementwise,
    foreach,
    indexing,
    logic,
    masks,
    movement,
    padding,
    random,
    reduce,
    shapes,
    sizes,
    slices,
)
