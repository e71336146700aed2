"""Attention in imported programs becomes one call of the operator, with the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU
from meta.frontend import from_torch, relay
from meta.passes import explain_attention

ALWAYS = {"least_keys": {"cpu": (0, 0)}}

# One layer as importers of the time wrote it: heads merged, a mask of 0 and 1 made to add, products
# of a transposed operand.
RELAY = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 6, 16), float32], %mask: Tensor[(2, 6), int64],
          %wq: Tensor[(16, 16), float32], %wk: Tensor[(16, 16), float32],
          %wv: Tensor[(16, 16), float32]) {
  %0 = reshape(%x, newshape=[-1, 16]);
  %1 = nn.dense(%0, %wq, units=None);
  %2 = transpose(reshape(%1, newshape=[2, 6, 4, 4]), axes=[0, 2, 1, 3]);
  %3 = nn.dense(%0, %wk, units=None);
  %4 = transpose(reshape(%3, newshape=[2, 6, 4, 4]), axes=[0, 2, 1, 3]);
  %5 = nn.dense(%0, %wv, units=None);
  %6 = transpose(reshape(%5, newshape=[2, 6, 4, 4]), axes=[0, 2, 3, 1]);
  %7 = nn.batch_matmul(reshape(%2, newshape=[8, 6, 4]), reshape(%4, newshape=[8, 6, 4]));
  %8 = divide(reshape(%7, newshape=[2, 4, 6, 6]), 2f);
  %9 = cast(expand_dims(expand_dims(%mask, axis=1), axis=2), dtype="float32");
  %10 = multiply(subtract(1f, %9), -10000f);
  %11 = nn.softmax(add(%8, %10), axis=-1);
  %12 = reshape(%11, newshape=[8, 6, 6]);
  %13 = nn.batch_matmul(%12, reshape(%6, newshape=[8, 4, 6]));
  %14 = transpose(reshape(%13, newshape=[2, 4, 6, 4]), axes=[0, 2, 1, 3]);
  reshape(%14, newshape=[2, 6, 16])
}
"""


def rewritten(model: Any, *arrays: Any, count: int = 1, converted: int = 0) -> Any:
    """Return the compiled program, in which attention is so many calls, some of them from the
    start.
    """
    said = explain_attention(model.program(*arrays).module, device=CPU, **ALWAYS)
    assert said.startswith(f"attention: {count - converted} rewritten, 0 refused"), said
    config = {"fuse_attention": ALWAYS, "write_out_attention": ALWAYS}
    with meta.PassContext(config=config), meta.dialect.only("torch"):
        run = meta.vm.compile(model, *arrays)
    assert run.kernels()["torch.fused_attention"] == count
    assert "torch.softmax" not in run.kernels()
    return run


def test_relay() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 16, generator=generator)
    weights = torch.randn(3, 16, 16, generator=generator) / 4
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    arrays = [*map(meta.array, (x, mask, *weights))]
    found = rewritten(relay.load(RELAY), *arrays)(*arrays).torch()
    query, key, value = ((x @ w.T).double().unflatten(2, (4, 4)).transpose(1, 2) for w in weights)
    scores = query @ key.mT / 2 + (1 - mask.double())[:, None, None] * -1e4
    wanted = (torch.softmax(scores, -1) @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


class Encoder(torch.nn.Module):
    """BERT of transformers; its inputs in order."""

    def __init__(self, implementation: str) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = transformers.BertConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            vocab_size=30,
            max_position_embeddings=16,
            attn_implementation=implementation,
        )
        self.bert = transformers.BertModel(config, add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=ids, attention_mask=mask, use_cache=False)[0]


@pytest.mark.parametrize("implementation", [pytest.param("eager", marks=pytest.mark.slow), "sdpa"])
def test_bert_of_transformers(implementation: str) -> None:
    torch.manual_seed(0)
    module = Encoder(implementation).eval()
    ids, mask = torch.randint(30, (2, 12)), torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    model = from_torch(module, (ids, mask))
    arrays = meta.array(ids), meta.array(mask)
    converted = 2 if implementation == "sdpa" else 0  # which is one operator of torch's, too
    found = rewritten(model, *arrays, count=2, converted=converted)(*arrays).torch()
    torch.testing.assert_close(found, module(ids, mask).detach(), rtol=1e-4, atol=1e-5)
    dy = torch.randn(2, 12, 16)
    with meta.PassContext(config={"fuse_attention": ALWAYS}), meta.dialect.only("torch"):
        step = meta.model.value_and_grad(model)
        assert str(step.program(meta.array(dy), *arrays).module).count("attention_dx(") == 2
        _, gradients = step(meta.array(dy), *arrays)
    module(ids, mask).backward(dy)
    for name, parameter in module.named_parameters():
        found = gradients[name].torch()
        torch.testing.assert_close(found, parameter.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_probabilities_of_which_nan_is_replaced_stay() -> None:
    """As ONNX writes attention of torch: where(isnan(p), 0, p)."""
    op = meta.op

    @meta.model.trace
    def attention(query, key, value):
        p = op.softmax(query @ op.permute_dims(key, (0, 1, 3, 2)), -1)
        return op.where(op.isnan(p), 0.0, p) @ value

    arrays = [meta.array(torch.randn(1, 2, 4, 8)) for _ in range(3)]
    said = explain_attention(attention.program(*arrays).module, device=CPU, **ALWAYS)
    assert "probabilities that are NaN become 0" in said
