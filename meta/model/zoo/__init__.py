"""Known networks, written with the layers of `meta.model`. Their arrays have the names that torch's
counterparts have, so `meta.model.load_weights` reads those files. Add one as a file of its own.
"""

from meta.model.zoo.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
)
from meta.model.zoo.gpt2 import GPT2Config, GPT2LMHeadModel, GPT2Model
from meta.model.zoo.lenet import LeNet, LeNetConfig
from meta.model.zoo.llama import LlamaConfig, LlamaForCausalLM, LlamaModel
from meta.model.zoo.resnet import ResNet, ResNetConfig, resnet18, resnet34, resnet50
from meta.model.zoo.transformer import causal_lm_loss, masked_lm_loss
from meta.model.zoo.vgg import VGG, VGGConfig, vgg11, vgg11_bn
from meta.model.zoo.vit import ViTConfig, ViTForImageClassification, ViTModel, vit_b_16

__all__ = [
    "VGG",
    "BertConfig",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
    "GPT2Config",
    "GPT2LMHeadModel",
    "GPT2Model",
    "LeNet",
    "LeNetConfig",
    "LlamaConfig",
    "LlamaForCausalLM",
    "LlamaModel",
    "ResNet",
    "ResNetConfig",
    "VGGConfig",
    "ViTConfig",
    "ViTForImageClassification",
    "ViTModel",
    "causal_lm_loss",
    "masked_lm_loss",
    "resnet18",
    "resnet34",
    "resnet50",
    "vgg11",
    "vgg11_bn",
    "vit_b_16",
]
