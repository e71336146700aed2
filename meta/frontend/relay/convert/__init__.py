"""From a Relay tree to a program of `meta`: conversion is tracing.

`convert` interprets the tree under a trace; each operator is a call of its converter. `program.py`
says what is evaluated when, `evaluate.py` does it; a further kind of expression goes there.
"""

from meta.frontend.relay.convert.evaluate import convert
from meta.frontend.relay.convert.program import RelayProgram

__all__ = ["RelayProgram", "convert"]
