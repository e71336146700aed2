"""Inference of a convolution network: a graph of cuDNN for each convolution and what follows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

import meta
from meta.base.device import Device
from meta.dialect.core import only
from meta.dialect.cudnn import cudnn
from meta.ir import Call, GlobalVar
from meta.model.zoo import ResNet, ResNetConfig
from meta.passes.manager import pass_name
from meta.passes.prepare import ARRAYS
from meta.vm.compiler.pipeline import pipeline
from tests.dialect.cudnn.test_graph import frontend

__all__ = ["frontend"]


@pytest.mark.parametrize("autocast", [False, True])
def test_a_residual_network(frontend: Any, monkeypatch: pytest.MonkeyPatch, autocast: bool) -> None:
    monkeypatch.setitem(cudnn.__dict__, "unavailable", None)
    config = ResNetConfig(layers=(1, 2, 1, 1), bottleneck=True, width=8, num_classes=8)
    model: Any = ResNet(config).eval()
    x = meta.array(torch.zeros(2, 3, 64, 64))
    if autocast:
        model = meta.amp.autocast(model, "float16")
    else:
        model, x = model.to(dtype="float16"), x.to(dtype="float16")
    program = model.program(x)
    main = program.module.main
    main = replace(main, attrs={**main.attrs, ARRAYS: len(program.arrays)})
    module = program.module.with_functions({**program.module.functions, "main": main})
    with only("cudnn", "torch"):
        for step in pipeline(Device("cuda:0")).passes:
            module = step(module)
            if pass_name(step) == "fuse_dialect":
                break
    calls = [b.value.callee for b in module.main.body.bindings if isinstance(b.value, Call)]
    fused = [module.functions[c.name].attrs["kernel"] for c in calls if isinstance(c, GlobalVar)]
    blocks = sum(config.layers)
    assert Counter(fused) == {
        "conv2d_bias_relu": 1 + 2 * blocks,
        "conv2d_bias_add_relu": blocks,
        "conv2d_bias": 4,  # the shortcuts of the stages
    }
    # What is left: views of weights, the image's layout, pooling, the last layer, and with autocast
    # the casts of the image and of the result.
    rest = Counter(str(c) for c in calls if not isinstance(c, GlobalVar))
    del rest["reshape"]
    last = {"dense": 1, "bias_add": 1, "permute_dims": 1, "max_pool2d": 1, "adaptive_avg_pool2d": 1}
    assert rest == last | ({"astype": 2} if autocast else {})
