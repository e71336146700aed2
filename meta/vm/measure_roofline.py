"""Measures what a device can do at best: copies, matrix products, and starting kernels.

What was not measured of a program is estimated by it (`meta.cost.roofline`). It takes about a
second per device, once for an environment, and is done on request only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import quantiles

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
from meta.cost.store import keep
from meta.runtime.ndarray import ndarray

SAMPLES = 15
LEAST = 2e-3
"""Seconds of a sample: short runs are repeated, since clocks and events are coarse."""
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
    """
    where = require("cpu" if device is None else device)
    found = peaks_of(where)
    if found.measured and not anew:
        return found
    # The kernels that priority chooses: no race is run for the products themselves.
    with torch.no_grad(), choosing(races=True):
        keep(peaks_key(where), tuple(_costs(where)), anew=True)
    return peaks_of(where)


def _costs(device: Device) -> Iterator[Cost]:
    cuda = device.kind == "cuda"
    elements = COPIED[device.kind] // 4
    yield peak_cost(COPY, 8 * elements, _copy(elements, device))
    for dtype in DTYPES[device.kind]:
        extent = SMALL_EXTENT.get(dtype, EXTENT[device.kind]) if cuda else EXTENT[device.kind]
        yield peak_cost(PRODUCT, 2 * extent**3, _product(extent, dtype, device), dtype)
    one = torch.ones(1, device=str(device))

    def launches() -> None:
        for _ in range(LAUNCHES):
            one.mul_(1.0)

    by_host = _timed(launches, device)
    yield peak_cost(GAP, LAUNCHES, by_host)
    yield peak_cost(LAUNCH, LAUNCHES, _in_graph(launches, device) if cuda else by_host)


def _copy(elements: int, device: Device) -> Timing:
    source, target = (torch.ones(elements, device=str(device)) for _ in range(2))
    return _timed(lambda: target.copy_(source), device)


def _product(extent: int, dtype: str, device: Device) -> Timing:
    """Time a product as programs have it: in float32 as precise as META_TF32 says."""
    x = ndarray(torch.ones((extent, extent), dtype=TO_TORCH[dtype], device=str(device)))
    return _timed(lambda: op.matmul(x, x), device)


def _in_graph(body: Callable[[], object], device: Device) -> Timing:
    """Return the time of what a CUDA graph was recorded of."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device.ordinal), torch.cuda.graph(graph):
        body()
    return _timed(graph.replay, device)


def _timed(body: Callable[[], object], device: Device) -> Timing:
    """Return the microseconds of one run, warm, of several samples."""
    cuda = device.kind == "cuda"

    def sample(count: int) -> float:
        if cuda:
            torch.cuda.synchronize(device.ordinal)
        started = time.perf_counter()
        for _ in range(count):
            body()
        if cuda:
            torch.cuda.synchronize(device.ordinal)
        return (time.perf_counter() - started) / count

    sample(1)
    count = max(1, round(LEAST / max(sample(3), 1e-7)))
    found = [1e6 * sample(count) for _ in range(SAMPLES)]
    p20, _, _, p80 = quantiles(found, n=5, method="inclusive")
    return Timing(quantiles(found, n=2, method="inclusive")[0], p20, p80, SAMPLES)
