"""From a Relay tree to a program of `meta`: conversion is tracing.

`convert` interprets the tree under a trace; each operator is a call of its converter. `program.py`
says what is evaluated when, `evaluate.py` does it; a further kind of expression goes there.
"""

from __future__ import annotations

from typing import Any

from meta.frontend.relay.convert.context import Context
from meta.frontend.relay.convert.evaluate import Evaluator
from meta.frontend.relay.convert.program import RelayProgram
from meta.op.core.tracing import Trace

__all__ = ["RelayProgram", "convert"]


def convert(program: RelayProgram, trace: Trace, args: tuple[Any, ...], training: bool) -> Any:
    """Return main's result for symbols and tuples of them; RelayError where that fails."""
    context = Context(program, trace, training)
    try:
        return Evaluator(context).main(args)
    except RecursionError:
        raise context.error(
            "functions call one another, or branches are nested, too deep to be converted"
        ) from None
