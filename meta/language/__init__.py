"""Floor 7: language models that write: decoders out of folders of transformers, and generation."""

from meta.language.block_pool import BlockPool
from meta.language.bound import Bound, decoding_bound
from meta.language.cache import Cache
from meta.language.config import DecoderConfig, Experts
from meta.language.decoder import Decoder
from meta.language.engine import Engine, Request
from meta.language.folder import load
from meta.language.generation import Completion, Piece, generate
from meta.language.quantization import Quantization
from meta.language.sampling import Sampling

__all__ = [
    "BlockPool", "Bound", "Cache", "Completion", "Decoder", "DecoderConfig", "Engine", "Experts",
    "Piece", "Quantization", "Request", "Sampling", "decoding_bound", "generate", "load",
]  # fmt: skip
