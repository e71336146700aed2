"""The level of ATen's kernels that the `cudnn` dialect goes before where it is at hand."""

from meta.dialect.core import LIBRARY

AFTER_CUDNN = {"cuda": LIBRARY - 1}
"""Of what is slower than generated code on the CPU."""
LIBRARY_AFTER_CUDNN = {"cpu": LIBRARY, **AFTER_CUDNN}
