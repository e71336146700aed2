"""The vision transformer (Dosovitskiy et al., "An image is worth 16x16 words", arXiv:2010.11929).

Names are those of transformers' ``ViTForImageClassification``, whose files of weights load: those
that version 5 keeps in memory, and the older ones in which files are written (`renamed`). The sizes
of ``vit_b_16`` are also torchvision's; its files, which join queries, keys and values, do not load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from meta import op, random
from meta.base.errors import TypeInferError
from meta.model import init
from meta.model.layers.basic import Dropout, Linear
from meta.model.layers.conv import Conv2d
from meta.model.layers.norm import LayerNorm
from meta.model.model import Model
from meta.model.trace import trace
from meta.model.zoo.transformer import (
    Config,
    activation,
    attend,
    initialize,
    merge_heads,
    require_dict,
    require_divides,
    split_heads,
)

__all__ = ["ViTConfig", "ViTForImageClassification", "ViTModel", "vit_b_16"]


@dataclass(frozen=True)
class ViTConfig(Config):
    """The sizes of a vision transformer; those of ViT-B/16 unless given. ``image_size`` and
    ``patch_size`` are the sides of squares, in pixels.

    Raises ArgumentError for heads that do not divide ``hidden_size``, and for patches that do not
    divide the image.

    >>> config = meta.model.zoo.ViTConfig(image_size=64, patch_size=16)
    >>> (config.image_size // config.patch_size) ** 2  # patches of an image, each a token
    16
    """

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    qkv_bias: bool = True
    num_labels: int = 1000

    fixed: ClassVar = {"model_type": "vit"}

    def __post_init__(self) -> None:
        heads, width = self.num_attention_heads, self.hidden_size
        require_divides(heads, width, "num_attention_heads", "hidden_size")
        require_divides(self.patch_size, self.image_size, "patch_size", "image_size")
        activation(self.hidden_act)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ViTConfig:
        """Return the configuration that a ``config.json`` of transformers describes: the labels are
        counted in its ``id2label``, without which there are 2.
        """
        require_dict(cls.__name__, values)
        labels = len(values.get("id2label") or ()) or values.get("num_labels", 2)
        return super().from_dict({**values, "num_labels": labels})


class ViTPatchEmbeddings(Model):
    """A linear map of each patch."""

    def build(self, config: ViTConfig) -> None:
        """Make the map, a convolution whose stride is its extent."""
        side = config.patch_size
        self.projection = Conv2d(config.num_channels, config.hidden_size, side, stride=side)

    @trace
    def forward(self, images: Any) -> Any:
        """Return (n, patches, width), row by row."""
        y = self.projection(images)
        return op.permute_dims(op.reshape(y, (*y.shape[:2], -1)), (0, 2, 1))


class ViTEmbeddings(Model):
    """The patches behind a token for the class, and where each is."""

    def build(self, config: ViTConfig) -> None:
        width, patches = config.hidden_size, (config.image_size // config.patch_size) ** 2
        self.cls_token = init.drawn(random.normal, (1, 1, width))
        self.position_embeddings = init.drawn(random.normal, (1, 1 + patches, width))
        self.patch_embeddings = ViTPatchEmbeddings(config)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.shape = (config.num_channels, config.image_size, config.image_size)

    @trace
    def forward(self, images: Any) -> Any:
        """Return (n, 1 + patches, width) of images."""
        if tuple(images.shape[1:]) != self.shape:
            raise TypeInferError(
                "these images are not of the model's size",
                expected=f"(n, {', '.join(map(str, self.shape))})",
                found=images.shape,
            )
        patches = self.patch_embeddings(images)
        token = op.broadcast_to(self.cls_token, (images.shape[0], 1, patches.shape[2]))
        return self.dropout(op.concat((token, patches), 1) + self.position_embeddings)


class ViTAttention(Model):
    """Attention of all places to all places."""

    def build(self, config: ViTConfig) -> None:
        self.heads, width = config.num_attention_heads, config.hidden_size
        self.q_proj, self.k_proj, self.v_proj = (
            Linear(width, width, config.qkv_bias) for _ in range(3)
        )
        self.o_proj = Linear(width, width)
        self.dropout_p = config.attention_probs_dropout_prob

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return heads for each rank."""
        require_divides(ranks, self.heads, "ranks", "num_attention_heads")
        return {**dict.fromkeys(("q_proj", "k_proj", "v_proj"), "column"), "o_proj": "row"}

    @trace
    def forward(self, x: Any) -> Any:
        """Apply it to (n, places, width)."""
        query, key, value = (
            split_heads(project(x), self.heads)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        dropped = self.dropout_p if self.training else 0.0
        return self.o_proj(merge_heads(attend(query, key, value, dropout_p=dropped)))


class ViTMLP(Model):
    """Two linear layers, place by place."""

    def build(self, config: ViTConfig) -> None:
        self.fc1 = Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)
        self.activation_fn = activation(config.hidden_act)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return features between the projections for each rank."""
        return {"fc1": "column", "fc2": "row"}

    @trace
    def forward(self, x: Any) -> Any:
        """Apply them to (n, places, width)."""
        return self.fc2(self.activation_fn(self.fc1(x)))


class ViTLayer(Model):
    """Attention and linear layers, each normalising first and added to what it was given."""

    def build(self, config: ViTConfig) -> None:
        self.attention, self.mlp = ViTAttention(config), ViTMLP(config)
        self.layernorm_before = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.layernorm_after = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to (n, places, width)."""
        x = op.add(x, self.dropout(self.attention(self.layernorm_before(x))))
        return op.add(x, self.dropout(self.mlp(self.layernorm_after(x))))


class ViTModel(Model):
    """The encoder, normalised at its end. Weights of a model with a head load, too.

    >>> sizes = {"hidden_size": 8, "intermediate_size": 16, "image_size": 8, "patch_size": 4}
    >>> config = meta.model.zoo.ViTConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    >>> meta.model.zoo.ViTModel(config).eval()(meta.zeros((1, 3, 8, 8))).shape  # class, patches
    (1, 5, 8)
    """

    renamed = (
        (r"^vit\.", ""),
        (r"^encoder\.layer\.", "layers."),
        (r"^(layers\.\d+\.attention\.)attention\.query\.", r"\1q_proj."),
        (r"^(layers\.\d+\.attention\.)attention\.key\.", r"\1k_proj."),
        (r"^(layers\.\d+\.attention\.)attention\.value\.", r"\1v_proj."),
        (r"^(layers\.\d+\.attention\.)output\.dense\.", r"\1o_proj."),
        (r"^(layers\.\d+\.)intermediate\.dense\.", r"\1mlp.fc1."),
        (r"^(layers\.\d+\.)output\.dense\.", r"\1mlp.fc2."),
    )
    not_kept = ("pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias")

    def build(self, config: ViTConfig) -> None:
        """Make the layers."""
        ViTConfig.require(config)
        self.embeddings = ViTEmbeddings(config)
        self.layers = [ViTLayer(config) for _ in range(config.num_hidden_layers)]
        self.layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    @trace
    def forward(self, images: Any) -> Any:
        """Return (n, 1 + patches, width), the class's token first."""
        x = self.embeddings(images)
        for layer in self.layers:
            x = layer(x)
        return self.layernorm(x)


class ViTForImageClassification(Model):
    """The encoder and a linear classifier of the class's token.

    >>> sizes = {"hidden_size": 8, "intermediate_size": 16, "image_size": 8, "patch_size": 4}
    >>> config = meta.model.zoo.ViTConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    >>> model = meta.model.zoo.ViTForImageClassification(config).eval()
    >>> model(meta.zeros((2, 3, 8, 8))).shape  # a logit for each class
    (2, 1000)
    """

    renamed = ((r"^(embeddings|encoder|layers|layernorm)\.", r"vit.\1."),)  # without a head

    draws_late = True

    def build(self, config: ViTConfig | None = None) -> None:
        """Make the layers; those of ViT-B/16 without a configuration."""
        config = config or ViTConfig()
        self.vit = ViTModel(config)
        self.classifier = Linear(config.hidden_size, config.num_labels)
        initialize(self, config.initializer_range)

    @trace
    def forward(self, images: Any) -> Any:
        """Return scores (n, num_labels) of images (n, num_channels, image_size, image_size)."""
        return self.classifier(self.vit(images)[:, 0])


def vit_b_16(**changes: Any) -> ViTForImageClassification:
    """Return a ViT-B/16 for images of 224 x 224; ``changes`` are fields of `ViTConfig`.

    >>> sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    >>> model = meta.model.zoo.vit_b_16(num_attention_heads=2, num_labels=5, **sizes).eval()
    >>> model(meta.zeros((1, 3, 224, 224))).shape
    (1, 5)
    """
    return ViTForImageClassification(replace(ViTConfig(), **changes))
