"""Converters of ATen's overloads, a file for each family."""

from meta.frontend.aten.converters import elementwise  # noqa: F401
