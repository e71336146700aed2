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
    """Return the result of main: symbols, arrays that are known, and tuples of them.

    Parameters
    ----------
    args: the values of main's parameters; symbols and tuples of them.
    training: whether to convert for training.

    Raises RelayError for what cannot be converted.
    """
    context = Context(program, trace, training)
    try:
        return Evaluator(context).main(args)
    except RecursionError:
        raise context.error(
            "functions call one another, or branches are nested, too deep to be converted"
        ) from None
