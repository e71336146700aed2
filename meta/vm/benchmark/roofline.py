"""Measures what a device can do at best: copies, matrix products, and starting kernels.

What was not measured of a program is estimated by it (`meta.cost.roofline`). It takes about a
second per device, once for an environment, and is done on request only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from meta import op
from meta.base.device import Device, require
from meta.base.dtype import TO_TORCH
from meta.cost.chooser import choosing
from meta.cost.record import Cost, Timing
from meta.cost.roofline import (
    COPY,
    GAP,
    LAUNCH,
    PRODUCT,
    Peaks,
    peak_cost,
    peaks_key,
    peaks_of,
)
from meta.cost.store import save
from meta.runtime.ndarray import ndarray
from meta.vm.benchmark.interleave import Call, Clock, clock_of, interleave, warm_lane

SAMPLES = 15
COPIED = {"cpu": 1 << 26, "cuda": 1 << 29}
"""By kind of device, the bytes of an array that no cache holds."""
EXTENT = {"cpu": 768, "cuda": 8192}
"""By kind of device, the extent of matrices that keep all of it busy."""
DTYPES = {
    "cpu": ("float32", "float64"),
    "cuda": ("float32", "float64", "float16", "bfloat16"),
}
SMALL_EXTENT = {"float64": 2048}
"""The extent of matrices of a dtype that most GPUs are slow at."""
LAUNCHES = 64
"""Small kernels in a row, of which the time of one is told."""


def measure_peaks(device: object = None, *, anew: bool = False) -> Peaks:
    """Measure the peaks of a device, by default the CPU, and keep them for all processes.

    Peaks that were measured in this environment are returned as they are, unless ``anew``. Measure
    on an idle device. Raises DeviceError for one that is not there.

    It takes seconds. ``print(meta.vm.measure_peaks())`` shows those of the CPU.

    >>> try:
    ...     meta.vm.measure_peaks("cuda:99")
    ... except meta.errors.DeviceError as error:
    ...     print(type(error).__name__)
    DeviceError
    """
    where = require("cpu" if device is None else device)
    found = peaks_of(where)
    if found.measured and not anew:
        return found
    # The kernels that priority chooses: no race is run for the products themselves.
    with torch.no_grad(), choosing(races=True):
        save(peaks_key(where), tuple(_costs(where)), anew=True)
    return peaks_of(where)


def _costs(device: Device) -> Iterator[Cost]:
    cuda, stream = device.kind == "cuda", clock_of(device, "eager")
    elements = COPIED[device.kind] // 4
    source, target = (torch.ones(elements, device=str(device)) for _ in range(2))
    yield peak_cost(COPY, 8 * elements, _timing(stream, lambda: target.copy_(source)))
    for dtype in DTYPES[device.kind]:
        extent = SMALL_EXTENT.get(dtype, EXTENT[device.kind]) if cuda else EXTENT[device.kind]
        # As programs have it: in float32 as precise as META_TF32 says.
        x = ndarray(torch.ones((extent, extent), dtype=TO_TORCH[dtype], device=str(device)))
        yield peak_cost(PRODUCT, 2 * extent**3, _timing(stream, partial(op.matmul, x, x)), dtype)
    one = torch.ones(1, device=str(device))

    def launches() -> None:
        for _ in range(LAUNCHES):
            one.mul_(1.0)

    by_host = _timing(stream, launches)
    yield peak_cost(GAP, LAUNCHES, by_host)
    recorded = _timing(clock_of(device, "graph"), launches) if cuda else by_host
    yield peak_cost(LAUNCH, LAUNCHES, recorded)


def _timing(clock: Clock, call: Call) -> Timing:
    """Return the microseconds of a call, warm."""
    lane = warm_lane(clock, lambda count: [call] * count)
    interleave([lane], clock, rounds=SAMPLES)
    return lane.timing()
