"""What the fused patterns of this dialect share. A pattern stands beside the kernels of its family.

They were measured on the CPU: AMD EPYC, one thread, float32, beside what runs without them.
"""

from meta.dialect.core import LIBRARY

ON_CPU = {"cpu": LIBRARY}
"""Where they are used: CUDA was not measured."""


def single_or_double(x):
    """Decline half precision, whose results would not be rounded in between, and integers."""
    return None if x.dtype in ("float32", "float64") else f"not for {x.dtype}"
