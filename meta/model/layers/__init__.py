"""Layers: models under torch's names and initial values. A new layer is exported where it is
written.
"""

from meta.model.layers import activation, basic, conv, norm, pool, quantized, recurrent, transformer
from meta.model.layers.activation import *  # noqa: F403
from meta.model.layers.basic import *  # noqa: F403
from meta.model.layers.conv import *  # noqa: F403
from meta.model.layers.norm import *  # noqa: F403
from meta.model.layers.pool import *  # noqa: F403
from meta.model.layers.quantized import *  # noqa: F403
from meta.model.layers.recurrent import *  # noqa: F403
from meta.model.layers.transformer import *  # noqa: F403

__all__ = [
    *activation.__all__,
    *basic.__all__,
    *conv.__all__,
    *norm.__all__,
    *pool.__all__,
    *quantized.__all__,
    *recurrent.__all__,
    *transformer.__all__,
]
