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
from meta.model.zoo.llama import LlamaConfig, LlamaForCausalLM, LlamaModel
from meta.model.zoo.losses import causal_lm_loss, masked_lm_loss

__all__ = [
    "BertConfig",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
    "GPT2Config",
    "GPT2LMHeadModel",
    "GPT2Model",
    "LlamaConfig",
    "LlamaForCausalLM",
    "LlamaModel",
    "causal_lm_loss",
    "masked_lm_loss",
]
