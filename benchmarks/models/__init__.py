"""Whole networks, each written twice: with `meta` and with torch, under the same parameter names.

To add one, write a file with a `Task` and name it here.
"""

from functools import partial

from models.bert import BERT_TINY
from models.lenet import LENET
from models.mlp import MLP
from models.resnet import RESNET18
from models.task import Row, Task

NETWORKS = {"mlp": MLP, "lenet": LENET, "resnet18": RESNET18, "bert-tiny": BERT_TINY}
MODES = ("inference", "training")
sgd_row = partial(Row, precision="float32", rate=0.01, momentum=0.9, fused=False)
"""Makes rows of `models_cpu.py` and what is built on them."""


def row_of(network: str, mode: str) -> Row:
    """Return a network for inference, or a training step by SGD with momentum."""
    return sgd_row(lambda _: NETWORKS[network], mode == "training")


__all__ = ["MODES", "NETWORKS", "Task", "row_of", "sgd_row"]
