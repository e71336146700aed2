"""What a decoder is made of: sizes, norms, attention, feed-forward layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meta.base.errors import ArgumentError
from meta.model.zoo.rotary import check_rope
from meta.model.zoo.transformer import activation, require_divides


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of a feed-forward layer (Shazeer et al., arXiv:1701.06538).

    count: of experts. chosen: how many of them a token goes to. inner: their features between.
    normalized: whether the weights of those chosen sum to 1. shared: the features of an expert that
    all tokens go to, behind a gate of its own; 0 for none.

    >>> experts = meta.language.Experts(count=8, chosen=2, inner=16)
    >>> experts.count, experts.normalized
    (8, True)
    """

    count: int
    chosen: int
    inner: int
    normalized: bool = True
    shared: int = 0


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder of one layer after the other; that of Llama's kind unless said otherwise.

    hidden_size: features of a token. inner: features of the feed-forward layers. heads,
    key_value_heads, head_width: of attention. windows: for each layer, how many keys a query sees,
    its own among them; None for all before it. rotary: for each layer, the parameters of rotary
    positions, or None. rotary_width: the features of a head that are rotated. positions: rows of
    a table of learned positions; 0 for none.

    norm: "rms" or "layer". norms: which there are of "before" and "after" attention and
    feed-forward layer. parallel: both of them read the same input. query_key_norm: over each "head"
    or "all" heads together. scale: of the scores. score_cap, logit_cap: c of ``c tanh(x / c)``.
    biases: which projections have them, of "qkv", "output", "mlp". gated: whether the activation
    multiplies another projection. experts: by layer, None where there are none.
    embedding_scale: what embeddings are multiplied by. tied: the head's matrix is theirs.

    >>> rope = {"rope_type": "default", "rope_theta": 1e4}
    >>> config = meta.language.DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None, 16), rotary=(rope, rope), experts=(None, None), rotary_width=4,
    ...     scale=0.5, eps=1e-6, max_positions=32)
    >>> config.layers, meta.language.Decoder(config).lm_head.weight.shape
    (2, (11, 8))
    """

    vocab_size: int
    hidden_size: int
    inner: int
    heads: int
    key_value_heads: int
    head_width: int
    windows: tuple[int | None, ...]
    rotary: tuple[Mapping[str, Any] | None, ...]
    experts: tuple[Experts | None, ...]
    rotary_width: int
    scale: float
    eps: float
    max_positions: int
    positions: int = 0
    norm: str = "rms"
    norms: tuple[str, ...] = ("before",)
    parallel: bool = False
    query_key_norm: str | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    biases: tuple[str, ...] = ()
    activation: str = "silu"
    gated: bool = True
    embedding_scale: float = 1.0
    tied: bool = False
    end_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_divides(self.key_value_heads, self.heads, "key_value_heads", "heads")
        require_divides(2, self.rotary_width, "2", "rotary_width")
        activation(self.activation)
        for parameters in self.rotary:
            if parameters is not None:
                check_rope(parameters)
        lengths = {len(self.windows), len(self.rotary), len(self.experts)}
        if len(lengths) != 1:
            raise ArgumentError(
                "windows, rotary and experts have one entry for each layer", found=lengths
            )

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.windows)
