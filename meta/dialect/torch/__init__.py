"""The `torch` dialect: every operator on PyTorch's ATen.

It is the reference and the last resort in general (REFERENCE); a kernel that beats generated code
on the CPU by measurement is registered with `on_cpu`, which gives it LIBRARY there. Add a kernel in
the operator's family file.
"""

from meta.dialect.core import REFERENCE, Dialect

torch = Dialect("torch", devices=("cpu", "cuda"), plevel=REFERENCE, package=__name__)
