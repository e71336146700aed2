"""Python numbers as tensors, for kernels that take only those."""

import torch


def number(x, dtype, device):
    """Return a number, rounded to a dtype (None: torch's own), as a 0-d tensor on a device.

    On CUDA it is filled there: a copy from the host would make the host wait for the device, and
    could not be captured in a graph.
    """
    value = torch.tensor(x, dtype=dtype)
    if device.type == "cpu":
        return value
    return torch.full((), value.item(), dtype=value.dtype, device=device)
