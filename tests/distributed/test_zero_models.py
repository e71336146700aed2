"""ZeRO on tiny networks of the zoo: values and updated parameters are those of one rank with the
joined batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta.model import zoo
from meta.optim import with_sgd
from tests.distributed.training import STAGES

TEXT = {"vocab_size": 31, "num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 2}
BERT = TEXT | {"intermediate_size": 18, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
LLAMA = TEXT | {"intermediate_size": 18, "num_key_value_heads": 1, "head_dim": 6}
GPT2 = {"vocab_size": 31, "n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 8}
DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def gpt2() -> meta.Model:
    config = zoo.GPT2Config.from_dict({**GPT2, **dict.fromkeys(DROPOUT, 0.0)})
    return zoo.GPT2LMHeadModel(config)


MODELS: dict[str, Callable[[], meta.Model]] = {
    "bert": lambda: zoo.BertForMaskedLM(zoo.BertConfig.from_dict(BERT)),
    "gpt2": gpt2,
    "llama": lambda: zoo.LlamaForCausalLM(zoo.LlamaConfig.from_dict(LLAMA)),
    "resnet": lambda: zoo.ResNet(zoo.ResNetConfig(layers=(1, 1, 1, 1), width=4, num_classes=5)),
}


class WithLoss(meta.Model):
    """A network and the mean cross entropy of what it returns."""

    def build(self, network: meta.Model) -> None:
        self.network = network

    @meta.model.trace
    def forward(self, x: Any, labels: Any) -> Any:
        """Return the loss."""
        scores = self.network(x)
        return meta.cross_entropy(scores.reshape((-1, scores.shape[-1])), labels.reshape((-1,)))


def trained(name: str, over: str | None = None, zero: int = 0, steps: int = 2) -> dict[str, Any]:
    """Train with this rank's rows of a batch; return losses and state, of parts the whole."""
    rank, count = (0, 1) if over is None else (dist.rank(over), dist.size(over))
    drawn = np.random.default_rng(0)
    model = WithLoss(MODELS[name]())
    if name == "resnet":
        inputs, classes = drawn.standard_normal((4, 3, 32, 32)), drawn.integers(0, 5, 4)
        if over is not None:
            meta.model.sync_batch_norm(model, over)
    else:
        inputs, classes = (drawn.integers(0, 31, (4, 7)) for _ in range(2))
    dtype = "float32" if name == "llama" else "float64"  # its rotations are of float32
    model.to(dtype=dtype)
    for array in model.parameters():
        array.update(meta.array(drawn.standard_normal(array.shape) * 0.3))
    step = with_sgd(0.1, momentum=0.9, over=over, zero=zero)(model)
    rows = slice(rank * (4 // count), (rank + 1) * (4 // count))
    given = meta.array(1.0, dtype), meta.array(inputs[rows]), meta.array(classes[rows])
    run = meta.vm.compile(step, *given)
    losses = [run(*given).item() for _ in range(steps)]
    state = {n: dist.unshard(a).numpy() for n, a in step.state().items()}
    with step.gathered():
        after = model(*given[1:]).item()
    return state | {"losses": np.array([*losses, after])}


CASES = [
    pytest.param(name, zero, marks=[] if (name, zero) == ("gpt2", 3) else pytest.mark.slow)
    for name in MODELS
    for zero in STAGES[1:]
]


@pytest.mark.parametrize(("name", "zero"), CASES)
def test_ranks_train_as_one(name: str, zero: int) -> None:
    alone = trained(name)
    found = dist.simulate(2).run(trained, name, "dp", zero)
    losses = np.mean([state.pop("losses") for state in found], axis=0)
    close = 1e-5 if name == "llama" else 1e-10
    np.testing.assert_allclose(losses, alone.pop("losses"), close)
    assert len(set(losses)) == 3
    for state in found:
        assert state.keys() == alone.keys()
        for key, value in state.items():
            np.testing.assert_allclose(value, alone[key], 10 * close, close, err_msg=key)
