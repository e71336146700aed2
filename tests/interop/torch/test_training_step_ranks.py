"""`training_step` on several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import optim

from meta.base.errors import ArgumentError, DistributedError
from meta.interop.torch import training_step
from tests.conftest import run_python
from tests.interop.torch.test_training_step import loss, matrices


@pytest.mark.long
def test_steps_and_states_are_those_of_torch(tmp_path: Path) -> None:
    """Of DistributedDataParallel, with other options in each case."""
    said = run_python(Path(__file__).parent / "ranks_program.py", tmp_path, OMP_NUM_THREADS="1")
    assert said.count(" of 2: 4 steps agree") == 2, said


def test_what_does_not_fit_is_refused() -> None:
    model = matrices()
    optimizer = optim.SGD(model.parameters(), 0.1)
    with pytest.raises(DistributedError, match="the mesh has no axis 'dp'"):
        training_step(model, optimizer, loss, over="dp")
    for options in ({"zero": 3, "over": "dp"}, {"zero": 1}):
        with pytest.raises(ArgumentError, match="zero does not fit"):
            training_step(model, optimizer, loss, **options)
