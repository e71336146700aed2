"""BERT-tiny (Devlin et al., arXiv:1810.04805; Turc et al., arXiv:1908.08962): 2 layers of width 128
with 2 heads and a vocabulary of 30522, classifying sentences. Without dropout, so that results can
be compared.
"""

from __future__ import annotations

import torch
from torch import nn

from meta.model import zoo
from models.task import classifier

WIDTH, HEADS, INNER, LAYERS, VOCABULARY, POSITIONS = 128, 2, 512, 2, 30522, 512
EPS = 1e-12

CONFIG = zoo.BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    intermediate_size=INNER,
    max_position_embeddings=POSITIONS,
    layer_norm_eps=EPS,
    pad_token_id=None,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


class TorchOutput(nn.Module):
    """A projection, added to what went around it, normalised."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(inner, WIDTH), nn.LayerNorm(WIDTH, EPS)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        return self.LayerNorm(residual + self.dense(x))


class TorchLayer(nn.Module):
    """One layer of the encoder, normalising last."""

    def __init__(self) -> None:
        super().__init__()
        projections = {n: nn.Linear(WIDTH, WIDTH) for n in ("query", "key", "value")}
        self.attention = nn.ModuleDict(
            {"self": nn.ModuleDict(projections), "output": TorchOutput(WIDTH)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(WIDTH, INNER)})
        self.output = TorchOutput(INNER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer to (n, steps, width)."""
        n, steps, width = x.shape
        project = self.attention["self"]

        def heads(name: str) -> torch.Tensor:
            return project[name](x).view(n, steps, HEADS, width // HEADS).transpose(1, 2)

        q, k, v = heads("query"), heads("key"), heads("value")
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.attention["output"](y.transpose(1, 2).reshape(n, steps, width), x)
        return self.output(nn.functional.gelu(self.intermediate["dense"](x)), x)


class TorchEmbeddings(nn.Module):
    """Words, all of type 0, and positions, added and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embeddings = nn.Embedding(POSITIONS, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, EPS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Look (n, steps) words up."""
        x = self.word_embeddings(words) + self.token_type_embeddings(torch.zeros_like(words))
        return self.LayerNorm(x + self.position_embeddings(torch.arange(words.shape[1])))


class TorchBert(nn.Module):
    """Embeddings, encoder, pooled first token."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = TorchEmbeddings()
        layers = nn.ModuleList(TorchLayer() for _ in range(LAYERS))
        self.encoder = nn.ModuleDict({"layer": layers})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(WIDTH, WIDTH)})

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return (n, width) of (n, steps) words."""
        x = self.embeddings(words)
        for layer in self.encoder["layer"]:
            x = layer(x)
        return torch.tanh(self.pooler["dense"](x[:, 0]))


class TorchBertTiny(nn.Module):
    """The network of the zoo with plain torch, under the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, self.classifier = TorchBert(), nn.Linear(WIDTH, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the scores of (n, steps) words."""
        return self.classifier(self.bert(words))


BERT_TINY = classifier(
    "64 words, batch 8",
    lambda: zoo.BertForSequenceClassification(CONFIG),
    TorchBertTiny,
    lambda: torch.randint(VOCABULARY, (8, 64)),
    count=2,
)
