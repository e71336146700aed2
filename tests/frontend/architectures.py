"""Architectures of transformers: how each is made small, with weights of a seed, and its inputs.

Add a row to `ROWS`. What does not import has the reason as it is told, so that the table says it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import transformers

VOCABULARY, TOKENS, PIXELS = 99, 9, 32
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {**TEXT, "intermediate_size": 48}
DECODER = {**ENCODER, "use_cache": False}
GROUPED = {**DECODER, "num_key_value_heads": 2}
TRANSLATOR = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 24,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "use_cache": False,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": PIXELS,
    "patch_size": 8,
}


def text(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return two sentences, the second padded at its end."""
    ids = torch.randint(3, VOCABULARY, (2, TOKENS), generator=generator)
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, 6:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def translated(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return two sentences, and the beginnings of what is said for them."""
    target = torch.randint(3, VOCABULARY, (2, 5), generator=generator)
    return {**text(generator), "decoder_input_ids": target}


def images(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, PIXELS, PIXELS, generator=generator)}


def sound(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, 600, generator=generator)}


def spectrogram(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(2, 16, 24, generator=generator)}


@dataclass(frozen=True)
class Row:
    """A class of transformers and the values of its configuration.

    Attributes
    ----------
    part: the module in the network that is imported; the whole by default.
    refused: what the error says if the module does not import.
    quick: whether an ordinary run takes it.
    """

    network: str
    values: dict[str, Any]
    inputs: Callable[[torch.Generator], dict[str, torch.Tensor]] = text
    changes: dict[str, Any] = field(default_factory=dict)
    part: str | None = None
    refused: str | None = None
    quick: bool = False

    def module(self) -> torch.nn.Module:
        """Return the network in eval mode. Nothing in it is 0 or 1, and right by accident."""
        kind = getattr(transformers, self.network)
        torch.manual_seed(0)
        module = kind(kind.config_class(**{**self.values, **self.changes})).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_((torch.rand_like(parameter) - 0.5) * 0.4)
            for name, buffer in module.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    buffer.add_(torch.rand_like(buffer) * 0.5)
        return module if self.part is None else module.get_submodule(self.part)

    def batch(self) -> dict[str, torch.Tensor]:
        """Return the inputs by name."""
        return self.inputs(torch.Generator().manual_seed(1))


ROWS = {
    "bert": Row("BertModel", ENCODER, quick=True),
    "distilbert": Row("DistilBertModel", TEXT, changes={"hidden_dim": 48}),
    "roberta": Row("RobertaModel", ENCODER),
    "albert": Row("AlbertModel", ENCODER, changes={"embedding_size": 16}),
    "electra": Row("ElectraModel", ENCODER, changes={"embedding_size": 16}),
    "deberta": Row(
        "DebertaModel", ENCODER, changes={"relative_attention": True, "pos_att_type": "p2c|c2p"}
    ),
    "deberta-v2": Row(
        "DebertaV2Model", ENCODER, changes={"relative_attention": True, "pos_att_type": "p2c|c2p"}
    ),
    "mpnet": Row("MPNetModel", ENCODER),
    "camembert": Row("CamembertModel", ENCODER),
    "xlm-roberta": Row("XLMRobertaModel", ENCODER),
    "mobilebert": Row(
        "MobileBertModel", ENCODER, changes={"embedding_size": 16, "intra_bottleneck_size": 16}
    ),
    "squeezebert": Row("SqueezeBertModel", ENCODER, changes={"embedding_size": 32}),
    "ernie": Row("ErnieModel", ENCODER),
    "convbert": Row("ConvBertModel", ENCODER, changes={"embedding_size": 32}),
    "funnel": Row(
        "FunnelModel",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48},
        changes={"block_sizes": [1, 1], "num_decoder_layers": 1},
    ),
    "layoutlm": Row("LayoutLMModel", ENCODER),
    "roformer": Row("RoFormerModel", ENCODER, changes={"embedding_size": 32}),
    "nystromformer": Row(
        "NystromformerModel",
        ENCODER,
        # Fewer landmarks take no mask.
        changes={
            "num_landmarks": TOKENS,
            "segment_means_seq_len": TOKENS,
            "conv_kernel_size": 3,
        },
    ),
    "gpt2": Row("GPT2LMHeadModel", DECODER, quick=True),
    "gpt2-eager": Row("GPT2LMHeadModel", DECODER, changes={"attn_implementation": "eager"}),
    "gpt-neo": Row(
        "GPTNeoForCausalLM",
        DECODER,
        changes={"attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "gptj": Row("GPTJForCausalLM", DECODER, changes={"rotary_dim": 4}),
    "gpt-neox": Row("GPTNeoXForCausalLM", DECODER),
    "opt": Row("OPTForCausalLM", DECODER, changes={"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "bloom": Row("BloomForCausalLM", DECODER),
    "falcon": Row("FalconForCausalLM", DECODER),
    "llama": Row("LlamaForCausalLM", GROUPED, quick=True),
    "mistral": Row("MistralForCausalLM", GROUPED, changes={"sliding_window": 4, "head_dim": 8}),
    "mixtral": Row(
        "MixtralForCausalLM",
        GROUPED,
        changes={"num_local_experts": 4},
        refused=r"histc\.default.*grouped_mm_fallback\.default",
    ),
    "mixtral-batched": Row(
        "MixtralForCausalLM",
        GROUPED,
        changes={"num_local_experts": 4, "experts_implementation": "batched_mm"},
    ),
    "mixtral-eager": Row(
        "MixtralForCausalLM",
        GROUPED,
        changes={"num_local_experts": 4, "experts_implementation": "eager"},
        refused="torch.export refuses the module: GuardOnDataDependentSymNode",
    ),
    "qwen2": Row("Qwen2ForCausalLM", GROUPED),
    "qwen3": Row("Qwen3ForCausalLM", GROUPED, changes={"head_dim": 8}),
    "gemma": Row("GemmaForCausalLM", GROUPED, changes={"head_dim": 8}),
    "gemma2": Row("Gemma2ForCausalLM", GROUPED, changes={"head_dim": 8, "sliding_window": 4}),
    "phi": Row("PhiForCausalLM", GROUPED),
    "phi3": Row("Phi3ForCausalLM", GROUPED),
    "starcoder2": Row("Starcoder2ForCausalLM", GROUPED),
    "stablelm": Row("StableLmForCausalLM", GROUPED),
    "cohere": Row("CohereForCausalLM", GROUPED),
    "olmo": Row("OlmoForCausalLM", GROUPED),
    "t5-encoder": Row("T5EncoderModel", T5),
    "t5": Row("T5ForConditionalGeneration", T5, translated),
    "bart": Row("BartModel", TRANSLATOR, translated),
    "mbart": Row("MBartModel", TRANSLATOR, translated),
    "pegasus": Row("PegasusModel", TRANSLATOR, translated),
    "vit": Row("ViTForImageClassification", VISION, images),
    "deit": Row("DeiTModel", VISION, images),
    "beit": Row("BeitModel", VISION, images),
    "swin": Row(
        "SwinModel",
        {"image_size": PIXELS, "patch_size": 2, "embed_dim": 16, "depths": [2, 1]},
        images,
        changes={"num_heads": [2, 4], "window_size": 4},
    ),
    "convnext": Row(
        "ConvNextModel",
        {"hidden_sizes": [8, 16], "depths": [1, 1]},
        images,
        changes={"num_stages": 2},
    ),
    "resnet": Row(
        "ResNetModel",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 1]},
        images,
        quick=True,
    ),
    "clip-text": Row("CLIPTextModel", ENCODER),
    "clip-vision": Row("CLIPVisionModel", VISION, images),
    "wav2vec2": Row(
        "Wav2Vec2Model",
        {k: v for k, v in ENCODER.items() if k != "max_position_embeddings"},
        sound,
        changes={
            "conv_dim": [16, 16],
            "conv_kernel": [10, 3],
            "conv_stride": [5, 2],
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
        },
    ),
    "whisper-encoder": Row(
        "WhisperModel",
        {n: v for n, v in TRANSLATOR.items() if n != "max_position_embeddings"},
        spectrogram,
        changes={"num_mel_bins": 16, "max_source_positions": 12, "decoder_start_token_id": 1},
        part="encoder",
    ),
}
