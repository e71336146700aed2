"""Floor 6: training runs: `fit` and what it is made of. See docs/training.md.

Written by `python -m tools.stubs`.
"""

from meta.train.callback import Callback as Callback
from meta.train.callback import EarlyStop as EarlyStop
from meta.train.callback import ReduceOnPlateau as ReduceOnPlateau
from meta.train.checkpoint import Checkpoint as Checkpoint
from meta.train.checkpoint import read_checkpoint as read_checkpoint
from meta.train.classification import AUC as AUC
from meta.train.classification import Accuracy as Accuracy
from meta.train.classification import ConfusionMatrix as ConfusionMatrix
from meta.train.classification import F1 as F1
from meta.train.classification import Perplexity as Perplexity
from meta.train.classification import Precision as Precision
from meta.train.classification import Recall as Recall
from meta.train.classification import TopK as TopK
from meta.train.data import Batches as Batches
from meta.train.evaluate import evaluate as evaluate
from meta.train.fit import fit as fit
from meta.train.log import CSVLog as CSVLog
from meta.train.log import Curves as Curves
from meta.train.log import JSONLog as JSONLog
from meta.train.log import Logger as Logger
from meta.train.log import TensorBoard as TensorBoard
from meta.train.metric import MeanAbsoluteError as MeanAbsoluteError
from meta.train.metric import MeanSquaredError as MeanSquaredError
from meta.train.metric import Metric as Metric
from meta.train.record import Record as Record
from meta.train.run import Run as Run

