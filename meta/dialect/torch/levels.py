"""The level of ATen's kernels that the `cudnn` dialect goes before where it is at hand."""

from meta.dialect.core import LIBRARY

LIBRARY_AFTER_CUDNN = {"cpu": LIBRARY, "cuda": LIBRARY - 1}
