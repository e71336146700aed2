"""BERT (Devlin et al., arXiv:1810.04805): an encoder that normalises last, with heads for masked
words and for classes. Arrays have transformers' names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from meta import op
from meta.model.init import parameter
from meta.model.layers.basic import Dropout, Embedding, Linear
from meta.model.layers.norm import LayerNorm
from meta.model.model import Model
from meta.model.trace import trace
from meta.model.zoo.transformer import (
    Config,
    activation,
    attend,
    bool_mask,
    embed_positions,
    initialize,
    merge_heads,
    require_divides,
    split_heads,
)

__all__ = ["BertConfig", "BertForMaskedLM", "BertForSequenceClassification", "BertModel"]


@dataclass(frozen=True)
class BertConfig(Config):
    """The sizes of a BERT; those of BERT-base unless given.

    Raises ArgumentError for heads that do not divide ``hidden_size``, and an unknown activation.

    >>> config = meta.model.zoo.BertConfig(num_hidden_layers=4, num_attention_heads=8)
    >>> config.num_hidden_layers, config.intermediate_size, config.vocab_size
    (4, 3072, 30522)
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    classifier_dropout: float | None = None
    tie_word_embeddings: bool = True

    fixed: ClassVar = {
        "model_type": "bert",
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    }

    def __post_init__(self) -> None:
        heads, width = self.num_attention_heads, self.hidden_size
        require_divides(heads, width, "num_attention_heads", "hidden_size")
        activation(self.hidden_act)


# Names in other files: those of version 1, and those of the model without a head.
_OLDER = ((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias"))
_WITHIN = (r"^(embeddings|encoder|pooler)\.", r"bert.\1.")
_PREDICTS_NEXT = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")
_HEADS = (
    *_PREDICTS_NEXT,
    "cls.predictions.bias",
    *(
        f"cls.predictions.{layer}.{array}"
        for layer in ("transform.dense", "transform.LayerNorm", "decoder")
        for array in ("weight", "bias")
    ),
    "classifier.weight",
    "classifier.bias",
)


class BertEmbeddings(Model):
    """Words, positions and types, added and normalised."""

    not_kept = ("position_ids", "token_type_ids")  # 0, 1, ... and zeros, in older files

    def build(self, config: BertConfig) -> None:
        width = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, width, config.pad_token_id)
        self.position_embeddings = Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = Embedding(config.type_vocab_size, width)
        self.LayerNorm = LayerNorm(width, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return words for each rank."""
        return {"word_embeddings": "vocabulary"}

    @trace
    def forward(self, input_ids: Any, token_type_ids: Any = None, position_ids: Any = None) -> Any:
        """Return [n, steps, width]; without types all are 0, without positions 0, 1, ..."""
        words, steps = self.word_embeddings(input_ids), input_ids.shape[1]
        if token_type_ids is None:
            types = op.strided_slice(self.token_type_embeddings.weight, (0,), (1,))
        else:
            types = self.token_type_embeddings(token_type_ids)
        positions = embed_positions(self.position_embeddings, steps, position_ids)
        return self.dropout(self.LayerNorm(op.add(op.add(words, types), positions)))


class BertSelfAttention(Model):
    """Attention of all tokens to all tokens."""

    def build(self, config: BertConfig) -> None:
        self.heads, width = config.num_attention_heads, config.hidden_size
        self.query, self.key, self.value = (Linear(width, width) for _ in range(3))
        self.dropout_p = config.attention_probs_dropout_prob

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return heads for each rank."""
        require_divides(ranks, self.heads, "ranks", "num_attention_heads")
        return dict.fromkeys(("query", "key", "value"), "column")

    @trace
    def forward(self, x: Any, mask: Any = None) -> Any:
        """Apply it to [n, steps, width], before the output projection."""
        query, key, value = (
            split_heads(project(x), self.heads) for project in (self.query, self.key, self.value)
        )
        dropped = self.dropout_p if self.training else 0.0
        return merge_heads(attend(query, key, value, mask, dropout_p=dropped))


class BertOutput(Model):
    """A projection, added to what went around it, normalised."""

    def build(self, config: BertConfig, inner: int) -> None:
        self.dense = Linear(inner, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    @trace
    def forward(self, x: Any, residual: Any) -> Any:
        """Return LayerNorm(dropout(dense(x)) + residual)."""
        return self.LayerNorm(op.add(self.dropout(self.dense(x)), residual))


class BertAttention(Model):
    """Attention with its output projection."""

    def build(self, config: BertConfig) -> None:
        self.self = BertSelfAttention(config)
        self.output = BertOutput(config, config.hidden_size)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return the heads' features for each rank."""
        return {"output.dense": "row"}

    @trace
    def forward(self, x: Any, mask: Any = None) -> Any:
        """Apply it to [n, steps, width]."""
        return self.output(self.self(x, mask), x)


class BertIntermediate(Model):
    """The projection to the inner width and the activation of a layer."""

    def build(self, config: BertConfig) -> None:
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.hidden_act = config.hidden_act

    @trace
    def forward(self, x: Any) -> Any:
        return activation(self.hidden_act)(self.dense(x))


class BertLayer(Model):
    """One layer of the encoder."""

    def build(self, config: BertConfig) -> None:
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertOutput(config, config.intermediate_size)

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return features between the projections for each rank."""
        return {"intermediate.dense": "column", "output.dense": "row"}

    @trace
    def forward(self, x: Any, mask: Any = None) -> Any:
        """Apply it to [n, steps, width]."""
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class BertEncoder(Model):
    """The layers, in a row."""

    def build(self, config: BertConfig) -> None:
        self.layer = [BertLayer(config) for _ in range(config.num_hidden_layers)]

    @trace
    def forward(self, x: Any, mask: Any = None) -> Any:
        """Apply them to [n, steps, width]."""
        for layer in self.layer:
            x = layer(x, mask)
        return x


class BertPooler(Model):
    """The first token, projected."""

    def build(self, config: BertConfig) -> None:
        self.dense = Linear(config.hidden_size, config.hidden_size)

    @trace
    def forward(self, x: Any) -> Any:
        """Return [n, width] of [n, steps, width]."""
        n, _, width = x.shape
        first = op.reshape(x[:, :1], (n, width))
        return op.tanh(self.dense(first))


class BertModel(Model):
    """Embeddings, encoder and, unless left out, the pooler. Weights of a model with a head load,
    too.

    >>> sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16}
    >>> config = meta.model.zoo.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    >>> states, pooled = meta.model.zoo.BertModel(config).eval()(meta.array([[2, 7, 3]]))
    >>> states.shape, pooled.shape
    ((1, 3, 8), (1, 8))
    """

    renamed = ((r"^bert\.", ""), *_OLDER)
    not_kept = _HEADS

    draws_late = True

    def build(self, config: BertConfig, add_pooling_layer: bool = True) -> None:
        """Make the parts, with initial values as transformers gives them."""
        BertConfig.require(config)
        self.embeddings, self.encoder = BertEmbeddings(config), BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        initialize(self, config.initializer_range)

    @trace
    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
    ) -> Any:
        """Return the hidden states [n, steps, width]; with a pooler also the pooled [n, width].

        input_ids, token_type_ids: integers [n, steps]. position_ids: [n or 1, steps].
        attention_mask: [n, steps], 0 for padding; see `bool_mask` for others.
        """
        x = self.embeddings(input_ids, token_type_ids, position_ids)
        x = self.encoder(x, bool_mask(attention_mask))
        return x if self.pooler is None else (x, self.pooler(x))


class BertPredictionHeadTransform(Model):
    """A projection, an activation, a normalisation."""

    def build(self, config: BertConfig) -> None:
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.hidden_act = config.hidden_act
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    @trace
    def forward(self, x: Any) -> Any:
        return self.LayerNorm(activation(self.hidden_act)(self.dense(x)))


class BertLMPredictionHead(Model):
    """Scores of the words of the vocabulary."""

    def build(self, config: BertConfig) -> None:
        """Make the layers; ``decoder.bias`` is ``bias`` if the embeddings are tied."""
        self.transform = BertPredictionHeadTransform(config)
        self.bias = parameter(op.zeros((config.vocab_size,)))
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.decoder.bias = self.bias

    def tensor_parallel_plan(self, ranks: int) -> dict[str, Any]:
        """Return scores of words for each rank."""
        return {"decoder": "vocabulary"}

    @trace
    def forward(self, x: Any) -> Any:
        """Return [n, steps, vocabulary]."""
        return self.decoder(self.transform(x))


class BertOnlyMLMHead(Model):
    """The head for masked words, under its name."""

    def build(self, config: BertConfig) -> None:
        self.predictions = BertLMPredictionHead(config)

    @trace
    def forward(self, x: Any) -> Any:
        """Return [n, steps, vocabulary]."""
        return self.predictions(x)


class BertForMaskedLM(Model):
    """BERT that predicts words. The loss is `masked_lm_loss`.

    >>> sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16}
    >>> config = meta.model.zoo.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    >>> model = meta.model.zoo.BertForMaskedLM(config).eval()
    >>> model(meta.array([[2, 7, 3], [2, 9, 3]])).shape  # a logit for each word
    (2, 3, 20)
    """

    renamed = (_WITHIN, *_OLDER)
    not_kept = (*_PREDICTS_NEXT, "bert.pooler.dense.weight", "bert.pooler.dense.bias")

    draws_late = True

    def build(self, config: BertConfig) -> None:
        """Make encoder and head; the head's matrix is that of the word embeddings, if tied."""
        self.bert = BertModel(config, add_pooling_layer=False)
        self.cls = BertOnlyMLMHead(config)
        initialize(self.cls, config.initializer_range)
        if config.tie_word_embeddings:
            words = self.bert.embeddings.word_embeddings
            self.cls.predictions.decoder.weight = words.weight

    @trace
    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
    ) -> Any:
        """Return the scores [n, steps, vocabulary]; arguments as `BertModel` takes them."""
        return self.cls(self.bert(input_ids, attention_mask, token_type_ids, position_ids))


class BertForSequenceClassification(Model):
    """BERT that classifies texts. The loss is `meta.cross_entropy`.

    >>> sizes = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 16}
    >>> config = meta.model.zoo.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    >>> model = meta.model.zoo.BertForSequenceClassification(config, num_labels=3).eval()
    >>> model(meta.array([[2, 7, 3], [2, 9, 3]])).shape  # a logit for each label
    (2, 3)
    """

    renamed = (_WITHIN, *_OLDER)

    draws_late = True

    def build(self, config: BertConfig, num_labels: int = 2) -> None:
        """Make encoder, pooler and classifier."""
        self.bert = BertModel(config)
        dropped = config.classifier_dropout
        self.dropout = Dropout(config.hidden_dropout_prob if dropped is None else dropped)
        self.classifier = Linear(config.hidden_size, num_labels)
        initialize(self.classifier, config.initializer_range)

    @trace
    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
    ) -> Any:
        """Return the scores [n, labels]; arguments as `BertModel` takes them."""
        _, pooled = self.bert(input_ids, attention_mask, token_type_ids, position_ids)
        return self.classifier(self.dropout(pooled))
