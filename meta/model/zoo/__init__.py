"""Known networks, written with the layers of `meta.model`. Their arrays have the names that torch's
counterparts have, so `meta.model.load_weights` reads those files. Add one as a file of its own.
"""

from meta.model.zoo import bert, convolutional, gpt2, llama, transformer, vit
from meta.model.zoo.bert import *  # noqa: F403
from meta.model.zoo.convolutional import *  # noqa: F403
from meta.model.zoo.gpt2 import *  # noqa: F403
from meta.model.zoo.llama import *  # noqa: F403
from meta.model.zoo.transformer import *  # noqa: F403
from meta.model.zoo.vit import *  # noqa: F403

__all__ = [
    *bert.__all__,
    *convolutional.__all__,
    *gpt2.__all__,
    *llama.__all__,
    *transformer.__all__,
    *vit.__all__,
]
