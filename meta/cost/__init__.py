"""Floor 3: what kernels, programs and exchanges between ranks cost, measured or estimated.

``record`` is what was measured of kernels, ``store`` keeps it on disk, ``chooser`` chooses by it.
Of what was not measured: ``flops`` (what a call does), ``roofline`` (what a device can do),
``interconnect`` (what links can). ``predict`` says how long a program takes, ``plan_search`` which
kernels together are the fastest.
"""

from meta.cost.chooser import measured
from meta.cost.record import Cost, Race, Timing

__all__ = ["Cost", "Race", "Timing", "measured"]
