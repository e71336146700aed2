"""Floor 7: language models that write: decoders out of folders of transformers, and generation.

Written by `python -m tools.stubs`.
"""

from meta.language.block_pool import BlockPool as BlockPool
from meta.language.bound import Bound as Bound
from meta.language.bound import decoding_bound as decoding_bound
from meta.language.cache import Cache as Cache
from meta.language.config import DecoderConfig as DecoderConfig
from meta.language.config import Experts as Experts
from meta.language.decoder import Decoder as Decoder
from meta.language.engine import Engine as Engine
from meta.language.engine import Request as Request
from meta.language.folder import load as load
from meta.language.generation import Completion as Completion
from meta.language.generation import Piece as Piece
from meta.language.generation import generate as generate
from meta.language.quantization import Quantization as Quantization
from meta.language.sampling import Sampling as Sampling

