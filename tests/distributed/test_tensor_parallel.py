"""A model that is divided among ranks computes, and learns, what it does on one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from tests.distributed.parallel import (
    MODELS,
    gradients,
    joined,
    made,
    trained,
)

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients(name: str, ranks: int) -> None:
    y, alone = gradients(*MODELS[name], None)
    found = dist.simulate({"tp": ranks}).run(gradients, *MODELS[name], "tp")
    for other, _ in found:
        np.testing.assert_allclose(other, y, **TIGHT)
    whole = joined([g for _, g in found])
    assert whole.keys() == alone.keys()
    for key, (value, _) in alone.items():
        np.testing.assert_allclose(whole[key], value, **TIGHT, err_msg=key)
    if ranks > 1:
        assert any(placement.splits for _, placement in found[0][1].values())


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("name", ["mlp", "gpt2", "llama"])
def test_updates(name: str, compiled: bool) -> None:
    alone = trained(name, None)
    whole = joined(dist.simulate({"tp": 2}).run(trained, name, "tp", compiled))
    for key, (value, _) in alone.items():
        np.testing.assert_allclose(whole[key], value, **TIGHT, err_msg=key)


# One reduction behind the attention and one behind the two linear layers, as Megatron has them,
# one of the embedded words; of the scores the largest, and the two of the cross entropy.
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_collectives_of_a_layer(name: str) -> None:
    make, inputs, _ = MODELS[name]

    def rank() -> Any:
        net = dist.tensor_parallel(made(make))
        given = [meta.array(x) for x in inputs]
        forward = Counter(e.collective for e in dist.explain_tensor_parallel(net, *given).exchanges)
        step = meta.optim.with_sgd(0.1)(net)
        program = step.program(meta.array(1.0, "float64"), *given).module
        calls = Counter(
            line.split(" = ")[1].split("(")[0]
            for line in str(program).splitlines()
            if " = " in line
        )
        return forward, calls

    forward, calls = dist.simulate({"tp": 2}).run(rank)[0]
    layers = 2
    assert forward == {"reduce_from": 3 + 2 * layers, "copy_to": 1 + 2 * layers, "all_reduce": 1}
    assert calls["reduce_from"] == 3 + 2 * layers
    # Backward, of each input of parts the sum of its gradients, and forward the largest score.
    assert calls["all_reduce"] == 1 + 2 * layers + 1
    assert not calls["all_gather"] and not calls["gather_from"]
