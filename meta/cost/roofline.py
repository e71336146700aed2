"""How fast a device is at best: what a kernel that was not measured is estimated by (`estimate`).

The model is the roofline of Williams et al., "Roofline: an insightful visual performance model",
2009: a kernel takes as long as its operations at the device's best rate, or as its bytes at the
bandwidth of a copy, whichever is longer, and what starting it takes.

`meta.vm.measure_peaks` measures a device and keeps the peaks where costs are kept, as a race of
copies, products and empty kernels. Where it never did, `DEFAULTS` hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from meta.base import config
from meta.base.device import Device
from meta.cost.flops import Work
from meta.cost.record import Cost, Key, Race, Timing
from meta.cost.store import find
from meta.dialect.core.preference import Config
from meta.runtime import gpu_properties


@dataclass(frozen=True, slots=True)
class Peaks:
    """The rates of a device.

    Attributes
    ----------
    copy: bytes read and written in a microsecond. products: by dtype, operations of a large matrix
    product in a microsecond. launch: microseconds from a kernel to the next one of a program. gap:
    microseconds of a kernel that the host launches by itself, outside of a CUDA graph. measured:
    whether they were; otherwise they are of no device in particular.
    """

    copy: float
    products: Mapping[str, float]
    launch: float
    gap: float
    measured: bool = False

    def rate(self, dtype: str) -> float:
        """Return the operations in a microsecond of a dtype, those of float32 for others."""
        return self.products.get(dtype, self.products["float32"])

    def moving(self, count: float) -> float:
        """Return the microseconds that reading or writing so many bytes takes."""
        return count / self.copy

    def estimate(self, work: Work, dtype: str) -> float:
        """Return the microseconds of a kernel that does this work in a dtype."""
        return max(work.flops / self.rate(dtype), self.moving(work.bytes)) + self.launch


DEFAULTS = {
    "cpu": Peaks(5e3, {"float32": 2e4, "float64": 1e4}, launch=2.0, gap=2.0),
    "cuda": Peaks(
        5e5, {"float32": 1e7, "float64": 5e6, "float16": 1e8, "bfloat16": 1e8}, launch=2.0, gap=10.0
    ),
}
"""By kind of device, rates that are rather low for today's: two cores of a CPU, a GPU of 2018."""
SHARE = 0.7
"""Of the rates of a data sheet, what large kernels reach."""


def _of_sheet(bandwidth: float, half: float, float32: float, float64: float) -> Peaks:
    """Return the peaks of a GPU with these terabytes and teraflops in a second."""
    rates = {"float16": half, "bfloat16": half, "float32": float32, "float64": float64}
    products = {dtype: SHARE * 1e6 * rate for dtype, rate in rates.items()}
    return Peaks(SHARE * 1e6 * bandwidth, products, launch=1.5, gap=10.0)


CHIPS = {
    (8, 0): _of_sheet(1.9, 312, 19.5, 19.5),  # NVIDIA A100
    (9, 0): _of_sheet(3.9, 989, 67, 67),  # NVIDIA H100 and H200: 3.35 and 4.8 TB/s
}
"""By compute capability, the rates of GPUs that are present, by NVIDIA's data sheets."""
OTHER = DEFAULTS["cpu"]

COPY, PRODUCT, LAUNCH, GAP = "copy", "product", "launch", "gap"
"""Of what the costs of a race of peaks are."""
BY = "torch"
"""Whose kernels are timed."""


def peaks_key(device: Device) -> Key:
    """Return the key under which the peaks of a device are kept. They are no operator's."""
    tf32 = device.kind == "cuda" and bool(config.get("META_TF32"))
    return Key("peaks", "peaks", device, "graph", tf32)


def peak_cost(of: str, work: int, time: Timing, dtype: str = "") -> Cost:
    """Return how a peak is kept: what was timed, of how many bytes or operations (``work``)."""
    named: Config = (("of", of), ("work", work))
    return Cost(BY, (("dtype", dtype), *named) if dtype else named, time)


def peaks_of(device: Device) -> Peaks:
    """Return the peaks of a device as they were measured, or else those of chips like it, or the
    defaults of its kind.
    """
    race = find(peaks_key(device))
    found = None if race is None else _from_race(race)
    if found is not None:
        return found
    default = DEFAULTS.get(device.kind, OTHER)
    present = device.kind == "cuda" and device.ordinal < torch.cuda.device_count()
    return (
        CHIPS.get(gpu_properties.query(device.ordinal).capability, default) if present else default
    )


def _from_race(race: Race) -> Peaks | None:
    """Return the peaks of a race, None if it lacks one."""
    rates: dict[str, float] = {}
    products: dict[str, float] = {}
    for cost in race.costs:
        said, timing = dict(cost.config), cost.forward
        work = said.get("work")
        if timing is None or timing.median <= 0 or not isinstance(work, int):
            continue
        if said.get("of") == PRODUCT:
            products[str(said.get("dtype"))] = work / timing.median
        else:
            rates[str(said.get("of"))] = work / timing.median
    if not {COPY, LAUNCH, GAP} <= rates.keys() or "float32" not in products:
        return None
    launch, gap = 1 / rates[LAUNCH], 1 / rates[GAP]
    return Peaks(rates[COPY], products, launch, gap, measured=True)
