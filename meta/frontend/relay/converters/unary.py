"""Converters of elementwise functions of one tensor."""

from meta import op
from meta.frontend.relay.registry import relay

relay.same("nn.relu", op.relu)
