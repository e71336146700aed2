"""Models that are built to be loaded, and devices of blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import meta
from meta.base.device import NOWHERE, default_device
from meta.base.errors import ArgumentError, DeviceError, FormatError, MetaError
from meta.model import Linear, Model, Sequential, empty_init, init, load_weights, save_weights, zoo
from meta.runtime import random

CONFIG = zoo.BertConfig(
    vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=16, max_position_embeddings=9,
)  # fmt: skip
BUILDS = {
    "linear": lambda: Linear(3, 4),
    "convolutions": lambda: Sequential(
        meta.model.Conv2d(2, 3, 3), meta.model.BatchNorm(3), meta.model.ConvTranspose1d(2, 2, 3)
    ),
    "embedding": lambda: meta.model.Embedding(5, 3, padding_idx=1),
    "lstm": lambda: meta.model.LSTM(3, 4),
    "attention": lambda: meta.model.MultiheadAttention(6, 2),
    "bert": lambda: zoo.BertForMaskedLM(CONFIG),
    "classifier": lambda: zoo.BertForSequenceClassification(CONFIG),
    "gpt2": lambda: zoo.GPT2LMHeadModel(
        zoo.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=7)
    ),
    "resnet": lambda: zoo.ResNet(zoo.ResNetConfig(layers=(1, 1, 1, 1), width=2, num_classes=3)),
}


def built(build, seed: int = 3):
    """Return a model, and the key that is drawn after it."""
    random.seed(seed)
    return build(), random.default.key()


def same(a: Model, b: Model) -> bool:
    pairs = zip(a.state().items(), b.state().items(), strict=True)
    return all(n == m and torch.equal(x.tensor, y.tensor) for (n, x), (m, y) in pairs)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_what_is_not_loaded_is_drawn_as_by_the_constructor(build) -> None:
    drawn, following = built(build)
    with empty_init():
        empty, key = built(build)
    assert key == following, "a model without values draws as many keys"
    random.seed(8)
    first = next(iter(drawn.state()))
    left = empty.load_state_dict({first: drawn.state()[first]}, strict=False)
    assert len(left.missing) == len(drawn.state()) - 1
    assert same(drawn, empty)
    assert random.default.state() == (8, 0)
    assert all(a.trainable == b.trainable for a, b in
               zip(drawn.state().values(), empty.state().values(), strict=True))  # fmt: skip


def test_a_tied_matrix_is_one_array_and_drawn_once() -> None:
    model, _ = built(BUILDS["bert"])
    words = model.bert.embeddings.word_embeddings.weight
    assert model.cls.predictions.decoder.weight is words
    assert words.tensor[0].abs().sum() == 0  # of the padding
    assert 0.015 < words.tensor[1:].std() < 0.025


def test_a_file_is_loaded_without_drawing(tmp_path, monkeypatch) -> None:
    source, _ = built(BUILDS["bert"])
    save_weights(source, tmp_path / "w.safetensors")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("numbers are drawn")

    monkeypatch.setattr(init.random, "normal", refuse)
    monkeypatch.setattr(init.random, "uniform", refuse)
    with empty_init():
        model = zoo.BertForMaskedLM(CONFIG)
    half = empty_init()
    with half:
        narrow = zoo.BertForMaskedLM(CONFIG).to("bfloat16")
    for loaded in (model, narrow):
        assert loaded.cls.predictions.decoder.weight.device is NOWHERE
        load_weights(loaded, tmp_path / "w.safetensors")
        assert loaded.cls.predictions.decoder.weight.device == "cpu"
    assert same(source, model)
    assert narrow.cls.predictions.bias.dtype == "bfloat16"
    words = meta.array(np.array([[1, 2, 3]]))
    assert torch.equal(model.eval()(words).torch(), source.eval()(words).torch())


def test_assign_shares_memory() -> None:
    source = torch.nn.Linear(3, 4)
    with empty_init():
        empty = Linear(3, 4)
    for model in (empty, Linear(3, 4)):
        kept = model.weight
        model.load_state_dict(source.state_dict(), assign=True)
        assert model.weight is kept and kept.tensor.data_ptr() == source.weight.data_ptr()
        x = torch.randn(2, 3)
        torch.testing.assert_close(model(meta.array(x)).detach().torch(), source(x).detach())
    half = Linear(3, 4).to("float16")
    half.load_state_dict(source.state_dict(), assign=True)
    assert half.weight.dtype == "float16" and half.weight.requires_grad
    with pytest.raises(FormatError, match="missing"):
        empty.load_state_dict({"weight": source.weight.detach()}, assign=True)


READS = {
    "numpy": lambda m, x: m.weight.numpy(),
    "torch": lambda m, x: m.weight.torch(),
    "repr": lambda m, x: repr(m.weight),
    "operator": lambda m, x: m.weight + 1.0,
    "reduction": lambda m, x: m.weight.sum(),
    "copy": lambda m, x: meta.array(m.weight),
    "part": lambda m, x: m.weight[0],
    "write": lambda m, x: m.weight.__setitem__(0, 1.0),
    "dlpack": lambda m, x: torch.from_dlpack(m.weight.detach()),
    "call": lambda m, x: m(x),
    "compile": lambda m, x: meta.vm.compile(m, x),
    "save": lambda m, x: save_weights(m, "/dev/null"),
    "deepcopy": lambda m, x: __import__("copy").deepcopy(m),
    "optimizer": lambda m, x: meta.optim.Adam(m.parameters()).step(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_model_without_values_is_not_read(read) -> None:
    with empty_init():
        model = Linear(3, 4)
    with pytest.raises(MetaError) as error:
        read(model, meta.ones((1, 3)))
    assert "has no values yet" in str(error.value) or read is READS["optimizer"]


def test_values_may_be_given_one_by_one() -> None:
    with empty_init():
        model = Linear(2, 2)
    model.weight.update([[1, 2], [3, 4]])
    init.constant(model.bias, 0.5)
    assert model(meta.array([[1.0, 1.0]])).tolist() == [[3.5, 7.5]]
    with empty_init():
        model = Linear(2, 2)
        init.orthogonal(model.weight)
        init.eye(init.zeros(model.weight))
        with pytest.raises(ArgumentError, match="no values yet"):
            model.weight.numpy()
    model.load_state_dict({"bias": [1.0, 2.0]}, strict=False)
    assert model.weight.tolist() == [[1, 0], [0, 1]]


def test_a_block_says_where_arrays_are_made() -> None:
    """On a machine without a GPU: by the default that constructors ask for."""
    assert default_device() == "cpu"
    with meta.device("cpu") as outer:
        assert outer == "cpu" and default_device() is outer
        made = (meta.zeros((2,)), meta.array([1.0]), meta.random.normal(3), meta.eye(2))
        assert {a.device for a in made} == {meta.device("cpu")}
    with pytest.raises(DeviceError, match="not present"), meta.device("cuda:77"):
        pass
    assert default_device() == "cpu"
    assert Linear(2, 3, device="cpu").weight.shape == (3, 2)
    with pytest.raises(DeviceError, match="not present"):
        Linear(2, 3, device="cuda:77")
    with pytest.raises(ArgumentError, match=r"Linear\(in_features.*device=None\)"):
        Linear(2, 3, devices="cpu")


def test_a_device_reaches_layers_and_operators(monkeypatch) -> None:
    """Devices that are said are recorded where a tensor is made."""
    monkeypatch.setattr("meta.base.device.require", meta.device)
    with meta.device("cuda:1"), empty_init():
        model = Sequential(Linear(2, 3), meta.model.Embedding(3, 4))
        assert [a._deferred.device for a in model.state().values()] == ["cuda:1"] * 3
        assert meta.op.zeros.schema.arrange(((2,),), {}) == ((2,), "float32", "cuda:1")
        assert meta.op.random_key.schema.arrange((), {}) == ("cuda:1",)
        bound = meta.op.zeros.schema.bind(((2,), "int8", None), {}, lambda x: x)
        assert bound == ((2,), "int8", "cuda:1")
    assert meta.op.zeros.schema.arrange(((2,),), {}) == ((2,), "float32", "cpu")
    assert model.to("cpu")[0].weight._deferred.device == "cpu"
