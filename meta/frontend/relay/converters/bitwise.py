"""Converters of bitwise operators and shifts."""

from meta import op
from meta.frontend.relay.registry import relay

relay.same("bitwise_and", op.bitwise_and)
relay.same("bitwise_not", op.bitwise_not)
relay.same("bitwise_or", op.bitwise_or)
relay.same("bitwise_xor", op.bitwise_xor)
relay.same("left_shift", op.left_shift)
relay.same("right_shift", op.right_shift)
