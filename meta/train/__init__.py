"""Floor 6: training runs: `fit` and what it is made of. See docs/training.md.

One file per part: data, evaluation, checkpoints, logs, callbacks; `run.py` is the loop.
"""

from typing import Any

from meta.base.did_you_mean import unknown_attribute
from meta.train.callback import Callback, EarlyStop, ReduceOnPlateau
from meta.train.checkpoint import Checkpoint, read_checkpoint
from meta.train.classification import (
    AUC,
    F1,
    Accuracy,
    ConfusionMatrix,
    Perplexity,
    Precision,
    Recall,
    TopK,
)
from meta.train.data import Batches
from meta.train.evaluate import evaluate
from meta.train.fit import fit
from meta.train.log import CSVLog, Curves, JSONLog, Logger, TensorBoard
from meta.train.metric import MeanAbsoluteError, MeanSquaredError, Metric
from meta.train.record import Record
from meta.train.run import Run

__all__ = [
    "AUC",
    "F1",
    "Accuracy",
    "Batches",
    "CSVLog",
    "Callback",
    "Checkpoint",
    "ConfusionMatrix",
    "Curves",
    "EarlyStop",
    "JSONLog",
    "Logger",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "Perplexity",
    "Precision",
    "Recall",
    "Record",
    "ReduceOnPlateau",
    "Run",
    "TensorBoard",
    "TopK",
    "evaluate",
    "fit",
    "read_checkpoint",
]


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.train", name, __all__)
