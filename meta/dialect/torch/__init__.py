"""The `torch` dialect: every operator on PyTorch's ATen.

It is the reference and the last resort in general (REFERENCE). A kernel that beats generated code
by measurement, or that calls a tuned library, states LIBRARY. Add a kernel in the operator's family
file.
"""

from meta.dialect.core import REFERENCE, Dialect

torch = Dialect(
    "torch", devices=("cpu", "cuda"), plevel=REFERENCE, package=__name__, by_family=True
)
