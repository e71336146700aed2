"""What the converters of `meta/frontend/relay/converters/transform.py` refuse, and why."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

ETHOSU = ("binary_elementwise", "conv2d", "depthwise_conv2d", "identity", "pooling",
          "unary_elementwise")  # fmt: skip

CASES = [Case(f"contrib.ethosu.{n}", (np.zeros(2),), refused="Ethos-U") for n in ETHOSU]
