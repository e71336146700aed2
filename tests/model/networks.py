"""Networks written twice, with `meta` and with torch, under the same parameter names."""

from __future__ import annotations

import math
from typing import Any

import torch

import meta
from meta import op, random
from meta.model import (
    GELU,
    BatchNorm,
    Conv2d,
    Dropout,
    LayerNorm,
    Linear,
    Model,
    ReLU,
    Sequential,
    trace,
)


class TorchLeNet(torch.nn.Module):
    """The same as `meta.model.zoo.LeNet`."""

    def __init__(self, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = torch.nn.Conv2d(6, 16, 5)
        self.fc1 = torch.nn.Linear(16 * ((side // 2 - 4) // 2) ** 2, 120)
        self.fc2 = torch.nn.Linear(120, 84)
        self.fc3 = torch.nn.Linear(84, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2, 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2, 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class BasicBlock(Model):
    """He et al., arXiv:1512.03385, figure 5 left, with a strided shortcut; then a classifier."""

    def build(self, inside: int, outside: int) -> None:
        self.conv1 = Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)
        self.bn1 = BatchNorm(outside)
        self.conv2 = Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(outside)
        self.shortcut = Sequential(
            Conv2d(inside, outside, 1, stride=2, bias=False), BatchNorm(outside)
        )
        self.fc = Linear(outside, 10)

    @trace
    def forward(self, x: Any) -> Any:
        y = op.relu(self.bn1(self.conv1(x)))
        y = op.relu(op.add(self.bn2(self.conv2(y)), self.shortcut(x)))
        return self.fc(op.batch_flatten(op.adaptive_avg_pool2d(y, 1)))


class TorchBasicBlock(torch.nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outside)
        self.conv2 = torch.nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outside)
        self.shortcut = torch.nn.Sequential(
            torch.nn.Conv2d(inside, outside, 1, stride=2, bias=False), torch.nn.BatchNorm2d(outside)
        )
        self.fc = torch.nn.Linear(outside, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))
        return self.fc(y.mean((2, 3)))


def parameter(*shape: int) -> meta.ndarray:
    array = random.uniform(shape, low=-0.3, high=0.3)
    array.requires_grad = True
    return array


class LSTM(Model):
    """A cell unrolled over the first axis; the last hidden state is classified."""

    def build(self, inputs: int, hidden: int) -> None:
        self.weight_ih, self.weight_hh = (
            parameter(4 * hidden, inputs),
            parameter(4 * hidden, hidden),
        )
        self.bias_ih, self.bias_hh = parameter(4 * hidden), parameter(4 * hidden)
        self.fc = Linear(hidden, 10)
        self.hidden = hidden

    @trace
    def forward(self, x: Any) -> Any:
        steps, batch, _ = x.shape
        h = c = op.zeros((batch, self.hidden), "float32")
        for t in range(steps):
            gates = op.dense(x[t], self.weight_ih) + self.bias_ih
            gates = gates + op.dense(h, self.weight_hh) + self.bias_hh
            i, f, g, o = op.split(gates, 4, 1)
            c = op.sigmoid(f) * c + op.sigmoid(i) * op.tanh(g)
            h = op.sigmoid(o) * op.tanh(c)
        return self.fc(h)


class TorchLSTM(torch.nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        cell = torch.nn.LSTMCell(inputs, hidden)
        for name, value in cell.named_parameters():
            self.register_parameter(name, value)
        self.fc = torch.nn.Linear(hidden, 10)
        self.hidden = hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(x.shape[1], self.hidden)
        for step in x:
            h, c = torch.lstm_cell(
                step, (h, c), self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
            )
        return self.fc(h)


class Attention(Model):
    """Multi-head self-attention; one projection makes queries, keys and values."""

    def build(self, width: int, heads: int) -> None:
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.heads = heads

    @trace
    def forward(self, x: Any) -> Any:
        n, steps, width = x.shape
        size = width // self.heads
        parts = op.reshape(self.qkv(x), (n, steps, 3, self.heads, size))
        parts = op.permute_dims(parts, (2, 0, 3, 1, 4))
        q, k, v = (op.reshape(p, (n * self.heads, steps, size)) for p in op.split(parts, 3, 0))
        weights = op.softmax(op.batch_matmul_nt(q, k) / math.sqrt(size), -1)
        y = op.reshape(op.batch_matmul(weights, v), (n, self.heads, steps, size))
        return self.out(op.reshape(op.permute_dims(y, (0, 2, 1, 3)), (n, steps, width)))


class Encoder(Model):
    """One layer of a transformer's encoder, normalising first, with a classifier of the mean."""

    def build(self, width: int, heads: int) -> None:
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = Sequential(Linear(width, 4 * width), GELU(), Linear(4 * width, width))
        self.dropout = Dropout(0.0)
        self.fc = Linear(width, 10)

    @trace
    def forward(self, x: Any) -> Any:
        x = x + self.dropout(self.attention(self.norm1(x)))
        x = x + self.dropout(self.mlp(self.norm2(x)))
        return self.fc(op.mean(x, 1))


class TorchEncoder(torch.nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.fc = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layer(x).mean(1))


ENCODER_NAMES = {
    "norm1": "layer.norm1",
    "norm2": "layer.norm2",
    "attention.qkv.weight": "layer.self_attn.in_proj_weight",
    "attention.qkv.bias": "layer.self_attn.in_proj_bias",
    "attention.out": "layer.self_attn.out_proj",
    "mlp.0": "layer.linear1",
    "mlp.2": "layer.linear2",
}


class WithLoss(Model):
    """Cross entropy of a network's result."""

    def build(self, network: Model) -> None:
        self.network = network

    @trace
    def forward(self, x: Any, labels: Any) -> Any:
        return op.cross_entropy(self.network(x), labels)


class MLP(Model):
    def build(self) -> None:
        self.layers = Sequential(Linear(5, 7), ReLU(), Linear(7, 10))

    @trace
    def forward(self, x: Any) -> Any:
        return self.layers(x)
