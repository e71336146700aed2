"""Floor 6: models: tracing, parameters, layers, and known networks in `zoo`. A layer is a `Model`;
add one in `layers/`.
"""

from typing import Any

from meta.base.did_you_mean import unknown_attribute
from meta.model import init, layers, zoo
from meta.model.checkpoint import checkpoint
from meta.model.control_flow import cond, scan, while_loop
from meta.model.custom_rule import custom_jvp, custom_vjp
from meta.model.functional_call import functional_call
from meta.model.gradient import value_and_grad
from meta.model.init import parameter
from meta.model.layers import *  # noqa: F403
from meta.model.layers.norm import sync_batch_norm
from meta.model.layers.quantized import quantize
from meta.model.model import Model
from meta.model.trace import Traced, trace
from meta.model.vmap import vmap
from meta.model.weights import load_weights, save_weights
from meta.model.wrapper import Autocast
from meta.runtime.deferred_values import empty_init

__all__ = [
    *layers.__all__,
    "Autocast",
    "Model",
    "Traced",
    "checkpoint",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "empty_init",
    "functional_call",
    "init",
    "load_weights",
    "parameter",
    "quantize",
    "save_weights",
    "scan",
    "sync_batch_norm",
    "trace",
    "value_and_grad",
    "vmap",
    "while_loop",
    "zoo",
]


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.model", name, __all__)
