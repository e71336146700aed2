"""Operators in the name space "contrib" that are for one processor: not converted."""

from meta.frontend.relay.registry import relay

relay.refuse(
    "contrib.ethosu.binary_elementwise",
    "contrib.ethosu.conv2d",
    "contrib.ethosu.depthwise_conv2d",
    "contrib.ethosu.identity",
    "contrib.ethosu.pooling",
    "contrib.ethosu.unary_elementwise",
    why="it is an instruction of the Ethos-U processor with packed weights; save the model before "
    "it is partitioned for that processor",
)
