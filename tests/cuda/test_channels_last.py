"""Convolution networks of float32 on a GPU, with the channels where rules put them, beside torch in
float64: dense, in groups and of single channels, with and without META_TF32.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import meta
from meta.base import config
from meta.frontend import from_torch
from meta.optim import with_sgd
from meta.passes import channels_last_rules
from meta.train.objective import Objective

pytestmark = pytest.mark.cuda
BOUNDS = {False: 1e-4, True: 2e-2}
"""Of the distance to torch in float64, as a share of the norm, by META_TF32. Of gradients in TF32
it is the largest one's: batch normalisation makes those before it small by taking away what is
rounded there.
"""


class Network(nn.Module):
    """A stem, a convolution in groups between two of 1x1, a residual sum, and a pooled end."""

    def __init__(self, groups: int, kernel: int, stride: int, dilation: int, times: int) -> None:
        super().__init__()
        padding = dilation * (kernel // 2)
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Conv2d(8, 16, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.middle = nn.Conv2d(
            16, 16 * times, kernel, stride, padding, dilation, groups, bias=True
        )
        self.last = nn.Conv2d(16 * times, 8, 1)
        self.skip = nn.Conv2d(8, 8, 1, stride)
        self.end = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        y = nn.functional.silu(self.middle(nn.functional.relu6(self.norm(self.first(x)))))
        scores: torch.Tensor = self.end((self.last(y) + self.skip(x)).mean((2, 3)))
        return scores


@pytest.mark.parametrize("tf32", [False, True], ids=["float32", "tf32"])
@pytest.mark.parametrize(
    ("groups", "kernel", "stride", "dilation", "times"),
    [(1, 3, 1, 1, 1), (4, 3, 2, 1, 1), (16, 3, 1, 1, 1), (16, 5, 2, 1, 2), (16, 7, 1, 2, 1)],
)
@pytest.mark.parametrize("shape", [(2, 3, 17, 15), (1, 3, 8, 32)])
def test_results_and_steps_are_torchs(
    tf32: bool,
    groups: int,
    kernel: int,
    stride: int,
    dilation: int,
    times: int,
    shape: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels_last_rules, "LARGE_IMAGE_BYTES", 0)
    torch.manual_seed(0)
    module = Network(groups, kernel, stride, dilation, times)
    x, labels = torch.randn(shape), torch.randint(5, shape[:1])
    wanted = copy.deepcopy(module).double()
    with config.override(META_TF32=tf32):
        model = from_torch(module, (x,)).to(device="cuda")
        images, classes = meta.array(x, device="cuda"), meta.array(labels, device="cuda")
        run = meta.vm.compile(model.eval(), images)
        _near(run(images).torch(), wanted.eval()(x.double()), tf32)
        one = meta.array(1.0, device="cuda")
        step = with_sgd(0.5)(Objective(model.train(), lambda s, t: meta.cross_entropy(s, t)))
        args = one, (images,), (classes,)
        loss = meta.vm.compile(step, *args)(*args)
    theirs = nn.functional.cross_entropy(wanted.train()(x.double()), labels)
    theirs.backward()
    _near(loss.torch(), theirs, tf32)
    gradients = {n: p.grad for n, p in wanted.named_parameters()}
    largest = max(float(g.norm()) for g in gradients.values() if g is not None)
    before, after = module.state_dict(), model.state_dict()
    for name, gradient in gradients.items():
        assert gradient is not None
        change = (before[name].double() - after[name].detach().torch().cpu().double()) / 0.5
        scale = largest if tf32 else max(float(gradient.norm()), 1e-2)
        assert float((change - gradient).norm()) < BOUNDS[tf32] * scale, name


def _near(found: torch.Tensor, expected: torch.Tensor, tf32: bool) -> None:
    expected = expected.detach()
    distance = float((found.cpu().double() - expected).norm())
    assert distance < BOUNDS[tf32] * max(float(expected.norm()), 1e-2)
