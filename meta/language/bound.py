"""How fast a decoder may write at best: as fast as memory hands out what a step reads."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meta.cost.roofline import peaks_of
from meta.language.decoder import Decoder


@dataclass(frozen=True)
class Bound:
    """What a step of one token for each text reads, and how long that takes.

    bytes: of weights and cache. seconds: by the bandwidth of a copy on the device. measured:
    whether that was measured there (`meta.vm.measure_peaks`), or is of a data sheet or a default.

    >>> bound = meta.language.Bound(bytes=16_000_000_000, seconds=0.004, measured=False)
    >>> 1 / bound.seconds  # tokens of a text in a second, at most
    250.0
    """

    bytes: int
    seconds: float
    measured: bool


def decoding_bound(decoder: Decoder, length: int, rows: int = 1) -> Bound:
    """Return the bound of reading a token of each of so many texts that have this length.

    Each weight is read once: of a table of embeddings a row for each token, of experts those that
    the tokens may go to at most. Of the cache, the keys and values that a token sees.

    >>> import meta
    >>> from meta.language.config import DecoderConfig
    >>> model = meta.language.Decoder(DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(None,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32))
    >>> meta.language.decoding_bound(model, 5).bytes - meta.language.decoding_bound(model, 4).bytes
    32
    """
    config, table = decoder.config, decoder.embed_tokens.weight
    count = 0
    for name, array in {id(a): (n, a) for n, a in decoder.state().items()}.values():
        part = array.nbytes
        if name.startswith("embed_positions") or (array is table and not config.tied):
            part = rows * part // array.shape[0]
        for i, experts in enumerate(config.experts):
            if experts and name.startswith((f"layers.{i}.mlp.up", f"layers.{i}.mlp.down")):
                part = part * min(experts.count, rows * experts.chosen) // experts.count
        count += part
    seen = sum(length if w is None else min(w, length) for w in config.windows)
    of_token = prod(decoder.cache_placement(1, 1).local)
    count += 2 * rows * seen * of_token * table.nbytes // table.size
    peaks = peaks_of(table.device)
    return Bound(count, peaks.moving(count) / 1e6, peaks.measured)
