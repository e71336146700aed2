"""Matrix products of float32 by oneDNN, and where it is faster than MKL, which ATen calls for them.

oneDNN is 1.05 to 1.4 times as fast where a product is large (2**26 multiplications and more, of 30
shapes), as fast from 2**23 on, and slower where it is small (AMD EPYC, one thread). But MKL has
vectors of 512 bits for Intel's processors only: on others that have them, oneDNN takes half the
time of all but small products. On an AMD EPYC of family 26, one thread, 2026-11-29: 142 us beside
305 for 256 x 128 x 512, 27 beside 41 for 64 x 256 x 128, and 13 beside 7 for 64 x 64 x 64.
"""

from functools import cache, partial
from time import thread_time

import torch
from torch import Tensor

LARGE, MEDIUM = 2**26, 2**20
"""Multiplications from which on oneDNN is faster: anywhere, and where it is by far."""


def product(
    x: Tensor, w: Tensor, b: Tensor | None = None, activation: str = "none", algorithm: str = ""
) -> Tensor:
    """Return the product of x by the rows of w, of any strides, plus b, and an activation of it."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, w, b, activation, [], algorithm)
    return y


def is_large(count: int) -> bool:
    """Whether oneDNN is there, and faster at a product of so many multiplications."""
    least = min(LARGE, MEDIUM) if _is_far_faster() else LARGE
    return count >= least and torch.backends.mkldnn.is_available()


@cache
def _is_far_faster() -> bool:
    """Whether oneDNN is by far the faster one on this processor: measured, in some milliseconds of
    one thread's own time. Several threads wait for one another wherever others use their cores, and
    the answer was a matter of luck then.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    x, w, out = torch.ones(256, 128), torch.ones(512, 128), torch.empty(256, 512)
    seconds: list[float] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run in 8 * [partial(torch.mm, x, w.t(), out=out), partial(product, x, w)]:
            start = thread_time()
            run()
            seconds.append(thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return 1.3 * min(seconds[1::2]) < min(seconds[::2])
