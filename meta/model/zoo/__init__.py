"""Known networks, written with the layers of `meta.model`. Their arrays have the names that torch's
counterparts have, so `meta.model.load_weights` reads those files. Add one as a file of its own.
"""

from meta.model.zoo import bert, gpt2, lenet, llama, resnet, transformer, vgg, vit
from meta.model.zoo.bert import *  # noqa: F403
from meta.model.zoo.gpt2 import *  # noqa: F403
from meta.model.zoo.lenet import *  # noqa: F403
from meta.model.zoo.llama import *  # noqa: F403
from meta.model.zoo.resnet import *  # noqa: F403
from meta.model.zoo.transformer import *  # noqa: F403
from meta.model.zoo.vgg import *  # noqa: F403
from meta.model.zoo.vit import *  # noqa: F403

__all__ = [
    *bert.__all__,
    *gpt2.__all__,
    *lenet.__all__,
    *llama.__all__,
    *resnet.__all__,
    *transformer.__all__,
    *vgg.__all__,
    *vit.__all__,
]
