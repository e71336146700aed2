"""Floor 3: what kernels, programs and exchanges between ranks cost, measured or estimated.

In the order of use: ``flops`` (what a call does), ``roofline`` (what a device can do),
``interconnect`` (what links can), ``predict`` and ``timeline`` (how long a program takes on one
device, and on a rank of many), ``plan_search`` (which kernels together are the fastest).
"""
