"""Converters of ATen's overloads, a file for each family."""

from meta.frontend.aten.converters import activation, elementwise, logic, reduce  # noqa: F401
