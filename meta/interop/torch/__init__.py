"""PyTorch's functions on the kernels of `meta`: `enable` and `disable`.

    import meta.interop.torch

    with meta.interop.torch.enable():
        torch.softmax(x, -1)                    # on the dialect that dispatch picks
    print(meta.interop.torch.report())

`enable` registers, at the dispatch key of a device, a kernel of ours for each overload of ATen that
has a converter (`meta.frontend.aten`). PyTorch's autograd, autocast, vmap and torch.compile stand
above that key and stay as they are; its formulas of gradients call overloads that are enabled, too.
See docs/howto/enable.md.
"""

from meta.interop.torch.optimizers import Algorithm, register_optimizer
from meta.interop.torch.overloads import all_names as names
from meta.interop.torch.registration import Enabled, disable, enable
from meta.interop.torch.report import EnableReport, report, reset_report
from meta.interop.torch.step import TorchTrainingStep, training_step

__all__ = [
    "Algorithm",
    "EnableReport",
    "Enabled",
    "TorchTrainingStep",
    "disable",
    "enable",
    "names",
    "register_optimizer",
    "report",
    "reset_report",
    "training_step",
]
