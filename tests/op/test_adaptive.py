"""Adam over several steps: as torch.optim, with numbers that change and nothing built anew."""

import pytest
import torch

import meta
from meta import op
from meta.base.errors import BackendError, TypeInferError
from meta.dialect.tvm import compute
from meta.testing import check

STEPS = 6
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_several_steps_are_those_of_torch(name: str, dialect: str) -> None:
    torch.manual_seed(0)
    start = torch.randn(5, 7, dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    theirs = OPTIMIZERS[name]([parameter], lr=0.0, betas=(0.8, 0.95), weight_decay=0.1)
    x = meta.array(start.numpy())
    m, v = op.zeros_like(x), op.zeros_like(x)
    for step in range(1, STEPS + 1):
        rate = 0.3 / step
        parameter.grad = torch.randn_like(parameter)
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
        dx = meta.array(parameter.grad.numpy())
        with meta.dialect.only(dialect):
            getattr(op, name)(x, dx, m, v, step, rate, 0.8, 0.95, weight_decay=0.1)
    check(x, parameter, 1e-12, 1e-12)


def test_a_schedule_builds_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a kernel is built")

    x, dx = meta.array([1.0, 2.0, 3.0]), meta.array([0.1, -0.1, 0.2])
    m, v = op.zeros_like(x), op.zeros_like(x)
    with meta.dialect.only("tvm"):
        op.adamw(x, dx, m, v, 1, 0.1)
        monkeypatch.setattr(compute, "deferred", refuse)
        for step in range(2, 6):
            op.adamw(x, dx, m, v, step, 0.1 / step, beta1=0.5 + step / 100, weight_decay=0.1 * step)
        other = meta.array([[1.0, 2.0]])
        with pytest.raises(BackendError, match="a kernel is built"):
            op.adamw(other, other, op.zeros_like(other), op.zeros_like(other), 1, 0.1)


def test_a_wrong_state_is_refused_before_anything_is_written() -> None:
    x, dx = meta.array([1.0, 2.0]), meta.array([1.0, 1.0])
    m, v = op.zeros_like(x), meta.array([0.0])
    with pytest.raises(TypeInferError, match="x, dx, m and v differ"):
        op.adam(x, dx, m, v, 1, 0.1)
    check(x, torch.tensor([1.0, 2.0]))
