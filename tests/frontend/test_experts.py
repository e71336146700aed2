"""A mixture of experts of transformers: products in groups, whose gradients are such again."""

from __future__ import annotations

import pytest
import torch

import meta
import meta.frontend.dynamo
from meta.frontend import from_torch

transformers = pytest.importorskip("transformers")

IDS = torch.tensor([[5, 9, 4, 3, 7, 1]])


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        use_cache=False,
        experts_implementation="grouped_mm",
    )
    return transformers.MixtralForCausalLM(config).eval()


def test_imported(model: torch.nn.Module) -> None:
    imported = from_torch(model, (IDS,))
    args = (meta.array(IDS),)
    kernels = meta.vm.compile(imported, *args).kernels()
    assert kernels["torch.grouped_matmul_nt"] == 2
    torch.testing.assert_close(imported(*args)["logits"].torch(), model(IDS).logits)


@pytest.mark.slow
def test_trained_by_torch_compile(model: torch.nn.Module) -> None:
    """Of twelve tokens of experts some have none, and no gradient."""
    wanted = model(IDS, labels=IDS).loss
    wanted.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    found = torch.compile(model, backend="meta", fullgraph=True)(IDS, labels=IDS).loss
    found.backward()
    torch.testing.assert_close(found, wanted)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6)
