"""Whole networks, each written twice: with `meta` and with torch, under the same parameter names.

To add one, write a file with a `Network` and name it here.
"""

from models.bert import BERT_TINY
from models.lenet import LENET
from models.mlp import MLP
from models.network import Network
from models.resnet import RESNET18

NETWORKS = {network.name: network for network in (MLP, LENET, RESNET18, BERT_TINY)}

__all__ = ["NETWORKS", "Network"]
