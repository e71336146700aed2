"""What is said of a run whose loss or gradients are not finite: which operator began it."""

from __future__ import annotations

import copy
from typing import Any

from meta.base import config
from meta.base.errors import NonFiniteError
from meta.grad.core import no_grad
from meta.model.model import Model
from meta.op.core import tree
from meta.train import random_state
from meta.train.data import Batch
from meta.vm.finite import kinds_of

SHOWN = 5


def diverged(what: str, training_step: Model, dy: Any, batch: Batch) -> NonFiniteError:
    """Return the error for a run that cannot go on, because of ``what``.

    Data that are no numbers are told first. A copy of the step is run once more on a batch,
    operator by operator: the first one that makes a NaN or an infinity of values without is named,
    with its line and the types of its arguments. If the weights are not finite already, that cannot
    be told any more.
    """
    given = tree.flatten((batch.inputs, batch.targets))[0]
    nan, _ = kinds_of(a.torch() for a in given)
    if nan:
        return NonFiniteError(
            what,
            found="NaN in the data, in the last batch",
            hint="look at what the data yield: numpy.isfinite(x).all()",
        )
    arrays = {n: a for n, a in training_step.state().items() if any(kinds_of([a.torch()]))}
    if arrays:
        names = ", ".join(list(arrays)[:SHOWN]) + (", ..." if len(arrays) > SHOWN else "")
        return NonFiniteError(
            what,
            found=f"arrays that are not finite now: {names}",
            hint="lower the learning rate or clip gradients; run with META_CHECK_FINITE=1, from "
            "the last checkpoint, to stop at the operator that begins it",
        )
    own = copy.deepcopy(training_step)
    try:
        with random_state.preserved(), no_grad(), config.override(META_CHECK_FINITE=True):
            own(dy, batch.inputs, batch.targets)
    except NonFiniteError as error:
        error.note(what)
        return error
    return NonFiniteError(
        what,
        found="the last batch, run once more, gives finite values",
        hint="run with META_CHECK_FINITE=1 to stop at the operator that begins it",
    )
