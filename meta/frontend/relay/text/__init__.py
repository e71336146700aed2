"""Relay text: `parse_text` reads what all versions of TVM wrote."""

from meta.frontend.relay.text.parser import parse_text as parse_text
