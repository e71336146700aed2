"""Blocks of the transformer (Vaswani et al., arXiv:1706.03762), with torch's arguments."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.model.layers.attention import MultiheadAttention
from meta.model.layers.basic import Dropout, Linear
from meta.model.layers.norm import LayerNorm
from meta.model.model import Model
from meta.model.trace import trace

__all__ = [
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": op.relu, "gelu": op.gelu}


class _Layer(Model):
    """Base of one layer: blocks, each added to what goes around it, normalised first or last."""

    blocks = 2

    def build(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        """Make the parts.

        d_model: features. nhead: heads, which divide them. dim_feedforward: features in the middle
        of the last block. dropout: probability to drop, of weights of keys, in the middle of the
        last block, and of the result of each block. activation: "relu", "gelu" or a function of an
        array. batch_first: arrays are (n, steps, d_model) instead of (steps, n, d_model).
        norm_first: each block normalises its input, instead of the sum behind it.
        """
        if not callable(activation) and activation not in ACTIVATIONS:
            raise ArgumentError(
                "unknown activation", expected="relu, gelu or a function", found=repr(activation)
            )
        self.activation, self.norm_first = activation, norm_first
        attention = {"dropout": dropout, "bias": bias, "batch_first": batch_first}
        self.self_attn = MultiheadAttention(d_model, nhead, **attention)
        if self.blocks > 2:
            self.multihead_attn = MultiheadAttention(d_model, nhead, **attention)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.dropout = Dropout(dropout)
        for i in range(1, self.blocks + 1):
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias))
            setattr(self, f"dropout{i}", Dropout(dropout))

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return features between the projections for each rank."""
        return {"linear1": "column", "linear2": "row"}

    def around(self, x: Any, number: int, block: Callable[[Any], Any]) -> Any:
        """Return x + block(norm(x)), or norm(x + block(x))."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        if self.norm_first:
            return op.add(x, dropout(block(norm(x))))
        return norm(op.add(x, dropout(block(x))))

    def feed_forward(self, x: Any) -> Any:
        """Return linear2(activation(linear1(x)))."""
        name = self.activation
        activation = name if callable(name) else ACTIVATIONS[name]
        return self.linear2(self.dropout(activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, then two linear layers at each step."""

    @trace
    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """Return an array of src's shape. Masks as `MultiheadAttention` takes them."""

        def attend(x: Any) -> Any:
            how = (src_key_padding_mask, False, src_mask, True, is_causal)
            return self.self_attn(x, x, x, *how)[0]

        return self.around(self.around(src, 1, attend), 2, self.feed_forward)


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself, then to ``memory``, then two linear layers at each
    step.
    """

    blocks = 3

    @trace
    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return an array of tgt's shape. Masks as `MultiheadAttention` takes them."""

        def attend(x: Any) -> Any:
            how = (tgt_key_padding_mask, False, tgt_mask, True, tgt_is_causal)
            return self.self_attn(x, x, x, *how)[0]

        def look(x: Any) -> Any:
            how = (memory_key_padding_mask, False, memory_mask, True, memory_is_causal)
            return self.multihead_attn(x, memory, memory, *how)[0]

        x = self.around(tgt, 1, attend)
        return self.around(self.around(x, 2, look), 3, self.feed_forward)


class _Stack(Model):
    """Base of layers in a row."""

    def build(self, layer: Model, num_layers: int, norm: Model | None = None) -> None:
        """Copy ``layer`` num_layers times, with its values, as torch does; ``norm``, if there is
        one, is applied to the result.
        """
        if num_layers < 1:
            raise ArgumentError("there is no layer", expected="num_layers >= 1", found=num_layers)
        self.layers = [copy.deepcopy(layer) for _ in range(num_layers)]
        self.norm = norm


class TransformerEncoder(_Stack):
    """Layers in a row: copies of a `TransformerEncoderLayer`."""

    @trace
    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Any:
        """Return an array of src's shape; each layer gets the masks."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, is_causal)
        return src if self.norm is None else self.norm(src)


class TransformerDecoder(_Stack):
    """Layers in a row: copies of a `TransformerDecoderLayer`."""

    @trace
    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """Return an array of tgt's shape; each layer gets the memory and the masks."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)
