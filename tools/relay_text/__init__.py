"""Relay programs as text again, and whether two of them are the same: the oracle of round trips.

Tests and `tools/fuzz_relay.py` print what `meta.frontend.relay` reads, and read it back.
"""

from tools.relay_text.equal import difference, equal
from tools.relay_text.program import print_text

__all__ = ["difference", "equal", "print_text"]
