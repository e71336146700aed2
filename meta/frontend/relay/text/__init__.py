"""Relay text: `parse_text` reads what all versions of TVM wrote, `print_text` writes it."""

from meta.frontend.relay.text.parser import parse_text as parse_text
from meta.frontend.relay.text.printer import print_text as print_text
