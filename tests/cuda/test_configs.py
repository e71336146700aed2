"""Each configuration of the kernels of all dialects computes what the default does, on a device."""

from __future__ import annotations

import pytest
import torch

import meta
from meta import op
from meta.dialect.core import Unsupported
from meta.dialect.core.openv import config_of, config_text
from meta.ir import parse
from tests.cuda.configured import CASES, call, distance, normal

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("name", CASES)
def test_each_configuration_has_the_results_of_the_default(name: str) -> None:
    prepared = CASES[name]()
    env = prepared.env
    assert env.configs is not None
    expected, ran = prepared.run(env), 0
    for config in env.configs.listed():
        assert config_of(config_text(config)) == config
        try:
            made = env.configured(config)
        except Unsupported:
            continue  # a plan that turns out not to be built
        found = prepared.run(made)
        torch.cuda.synchronize()
        assert distance(found, expected) <= 1, config_text(config)
        ran += 1
    assert ran or name == "cudnn attention"  # which has one plan on some GPUs


def test_a_program_names_an_algorithm() -> None:
    x, w = normal(128, 768), normal(768, 768)
    env = call("cublas", op.dense, x, w).env
    assert env.configs is not None
    name = f"cublas.dense@{config_text(env.configs.listed()[0])}"
    module = parse(f"""
func @main(%x: float16[128, 768], %w: float16[768, 768]) -> float16[128, 768] {{
  %y: float16[128, 768] = {name}(%x, %w)
  return %y
}}""")
    run = meta.vm.compile(module, device="cuda")
    assert run.kernels() == {name: 1}
    out = run(meta.array(x), meta.array(w)).torch()
    assert distance([out], [x @ w.t()]) <= 1
