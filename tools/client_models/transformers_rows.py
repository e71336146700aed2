"""Architectures of transformers in tiny configurations. Add a row to `ROWS`.

Dropout is 0 in all of them, so that train mode can be compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import transformers

from tools.client_models.torch_row import Inputs, TorchRow

VOCABULARY, TOKENS, PIXELS = 99, 9, 32
IDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "eos_token_id": 2}
TEXT = {
    **IDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 24,
    "bos_token_id": 1,
}
ENCODER = {**TEXT, "intermediate_size": 48}
GROUPED = {**ENCODER, "num_key_value_heads": 2}
TRANSLATOR = {
    **IDS,
    "d_model": 32,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    "max_position_embeddings": 24,
    "bos_token_id": 1,
}
T5 = {**IDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4} | {
    "decoder_start_token_id": 0
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": PIXELS,
    "patch_size": 8,
}

EXPERTS = {"num_local_experts": 4}
RELATIVE = {"relative_attention": True, "pos_att_type": "p2c|c2p"}
SPEECH = {k: v for k, v in ENCODER.items() if k != "max_position_embeddings"}
FRAMES = {
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    # Which frames are masked in train mode is drawn by NumPy.
    "apply_spec_augment": False,
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


def _model(
    network: str,
    values: dict[str, Any],
    inputs: Inputs = text,
    *,
    changes: dict[str, Any] | None = None,
    prepared: Callable[[torch.nn.Module], Any] = lambda _: None,
    **more: Any,
) -> TorchRow:
    """Return the row of a class of transformers, of the values of its configuration.

    prepared: is given the network before it is used.
    """

    def make() -> torch.nn.Module:
        kind = getattr(transformers, network)
        config = kind.config_class(**{**values, **(changes or {})})
        for name, value in list(vars(config).items()):
            if "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)
        module = kind(config)
        prepared(module)
        return module

    return TorchRow(make, inputs, **more)


ROWS = {
    "bert": _model("BertModel", ENCODER, quick=True),
    "distilbert": _model("DistilBertModel", TEXT, changes={"hidden_dim": 48}),
    "roberta": _model("RobertaModel", ENCODER),
    "albert": _model("AlbertModel", ENCODER, changes={"embedding_size": 16}),
    "electra": _model("ElectraModel", ENCODER, changes={"embedding_size": 16}),
    "deberta": _model("DebertaModel", ENCODER, changes=RELATIVE),
    "deberta-v2": _model("DebertaV2Model", ENCODER, changes=RELATIVE),
    "mpnet": _model("MPNetModel", ENCODER),
    "camembert": _model("CamembertModel", ENCODER),
    "xlm-roberta": _model("XLMRobertaModel", ENCODER),
    "mobilebert": _model(
        "MobileBertModel", ENCODER, changes={"embedding_size": 16, "intra_bottleneck_size": 16}
    ),
    "squeezebert": _model("SqueezeBertModel", ENCODER, changes={"embedding_size": 32}),
    "ernie": _model("ErnieModel", ENCODER),
    "convbert": _model("ConvBertModel", ENCODER, changes={"embedding_size": 32}),
    "funnel": _model(
        "FunnelModel",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48},
        changes={"block_sizes": [1, 1], "num_decoder_layers": 1},
    ),
    "layoutlm": _model("LayoutLMModel", ENCODER),
    "roformer": _model("RoFormerModel", ENCODER, changes={"embedding_size": 32}),
    "nystromformer": _model(
        "NystromformerModel",
        ENCODER,
        # Fewer landmarks take no mask.
        changes={
            "num_landmarks": TOKENS,
            "segment_means_seq_len": TOKENS,
            "conv_kernel_size": 3,
        },
    ),
    "gpt2": _model("GPT2LMHeadModel", ENCODER, quick=True),
    "gpt2-eager": _model("GPT2LMHeadModel", ENCODER, changes={"attn_implementation": "eager"}),
    "gpt-neo": _model(
        "GPTNeoForCausalLM",
        ENCODER,
        changes={"attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "gptj": _model("GPTJForCausalLM", ENCODER, changes={"rotary_dim": 4}),
    "gpt-neox": _model("GPTNeoXForCausalLM", ENCODER),
    "opt": _model("OPTForCausalLM", ENCODER, changes={"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "bloom": _model("BloomForCausalLM", ENCODER),
    "falcon": _model("FalconForCausalLM", ENCODER),
    "llama": _model("LlamaForCausalLM", GROUPED, quick=True),
    "mistral": _model("MistralForCausalLM", GROUPED, changes={"sliding_window": 4, "head_dim": 8}),
    "mixtral": _model("MixtralForCausalLM", GROUPED, changes=EXPERTS),
    "mixtral-batched": _model(
        "MixtralForCausalLM",
        GROUPED,
        changes={**EXPERTS, "experts_implementation": "batched_mm"},
    ),
    "mixtral-eager": _model(
        "MixtralForCausalLM",
        GROUPED,
        changes={**EXPERTS, "experts_implementation": "eager"},
        refused="torch.export refuses the module: GuardOnDataDependentSymNode",
        cause="a Python loop over the experts that values of the batch choose",
    ),
    "qwen2": _model("Qwen2ForCausalLM", GROUPED),
    "qwen3": _model("Qwen3ForCausalLM", GROUPED, changes={"head_dim": 8}),
    "gemma": _model("GemmaForCausalLM", GROUPED, changes={"head_dim": 8}),
    "gemma2": _model("Gemma2ForCausalLM", GROUPED, changes={"head_dim": 8, "sliding_window": 4}),
    "phi": _model("PhiForCausalLM", GROUPED),
    "phi3": _model("Phi3ForCausalLM", GROUPED),
    "starcoder2": _model("Starcoder2ForCausalLM", GROUPED),
    "stablelm": _model("StableLmForCausalLM", GROUPED),
    "cohere": _model("CohereForCausalLM", GROUPED),
    "olmo": _model("OlmoForCausalLM", GROUPED),
    "t5-encoder": _model("T5EncoderModel", T5),
    "t5": _model("T5ForConditionalGeneration", T5, translated),
    "bart": _model("BartModel", TRANSLATOR, translated),
    "mbart": _model("MBartModel", TRANSLATOR, translated),
    "pegasus": _model("PegasusModel", TRANSLATOR, translated),
    "vit": _model("ViTForImageClassification", VISION, images),
    "deit": _model("DeiTModel", VISION, images),
    "beit": _model("BeitModel", VISION, images),
    "swin": _model(
        "SwinModel",
        {"image_size": PIXELS, "patch_size": 2, "embed_dim": 16, "depths": [2, 1]},
        images,
        changes={"num_heads": [2, 4], "window_size": 4},
    ),
    "convnext": _model(
        "ConvNextModel",
        {"hidden_sizes": [8, 16], "depths": [1, 1]},
        images,
        changes={"num_stages": 2},
    ),
    "resnet": _model(
        "ResNetModel",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [2, 1]},
        images,
        quick=True,
    ),
    "clip-text": _model("CLIPTextModel", ENCODER),
    "clip-vision": _model("CLIPVisionModel", VISION, images),
    "wav2vec2": _model(
        "Wav2Vec2Model",
        SPEECH,
        sound,
        changes=FRAMES,
        refused=r"setattr\(\) on Tensor.requires_grad",
        cause="it sets requires_grad of a tensor in train mode, of which Dynamo makes no graph",
    ),
    "wav2vec2-frozen": _model(
        "Wav2Vec2Model",
        SPEECH,
        sound,
        changes=FRAMES,
        prepared=lambda module: module.freeze_feature_encoder(),
    ),
    "whisper-encoder": _model(
        "WhisperModel",
        {n: v for n, v in TRANSLATOR.items() if n != "max_position_embeddings"},
        spectrogram,
        changes={"num_mel_bins": 16, "max_source_positions": 12, "decoder_start_token_id": 1},
        part="encoder",
    ),
}
