"""Optimizer steps that update all parameters of a model at once, block by block. Add one here.

A block is one parameter with what belongs to it; norms are taken over the whole of a block.
"""

from meta.op.adaptive import check_numbers
from meta.op.core import InOut, Scalar, Tensor, op
from meta.op.core.check import require, require_float
from meta.op.core.same_dtype import require_same_dtype

PER_BLOCK = 4  # gradient, parameter and two moments


@op
def lans(
    tensor_list: tuple[InOut, ...],
    step: Scalar | Tensor,
    learning_rate: Scalar | Tensor,
    beta1: Scalar,
    beta2: Scalar,
    eps: Scalar,
    bias_correction: bool | int,
    weight_decay: Scalar,
    grad_averaging: bool | int,
    mode: bool | int,
    normalize_grad: bool,
) -> tuple[()]:
    """One step of LANS for several parameters, in place. For each of them, with ``g`` the gradient:

    ``g = g / |g|``, ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g**2``,
    ``r = mhat / (sqrt(vhat) + eps) + weight_decay * x``,
    ``c = g / (sqrt(vhat) + eps) + weight_decay * x``,
    ``x = x - learning_rate * |x| * (beta1 * r / |r| + (1 - beta1) * c / |c|)``, where
    ``mhat = m / (1 - beta1**step)`` and ``vhat = v / (1 - beta2**step)``. |.| is the Euclidean
    norm of one array; a quotient of norms is 1 where either is 0, and a gradient of 0 stays 0.

    tensor_list: all gradients, then as many parameters, first and second moments (zeros at first),
    in one order: 4n tensors. All of one floating point dtype, and the four of a parameter of one
    shape; half precision is computed in float32. The gradients are left as they are.
    step: the number of this step, from 1; step and learning_rate are numbers, or tensors with one
    element. bias_correction: 0 takes m and v for mhat and vhat. grad_averaging: 0 adds g to m
    without the factor 1 - beta1. mode: 0 adds weight_decay * x to g instead of to r and c.
    normalize_grad: False takes g as it is.

    Returns the 4n arrays that were given. Raises TypeInferError for a list that is no such list, or
    a mode or switch other than 0 and 1. Zheng et al., "Accelerated large batch optimization of BERT
    pretraining in 54 minutes", arXiv:2006.13484, algorithm 2 with phi(z) = z.
    """
    count = len(tensor_list) // PER_BLOCK
    require(
        count > 0 and len(tensor_list) % PER_BLOCK == 0,
        "tensor_list has the wrong length",
        expected="4n tensors: gradients, parameters, first and second moments",
        found=len(tensor_list),
    )
    require_same_dtype(*tensor_list)
    require_float(tensor_list[0], "tensor_list")
    for i in range(count):
        block = tensor_list[i::count]
        require(
            len({t.shape for t in block}) == 1,
            f"gradient, parameter and moments of block {i} differ",
            expected="one shape",
            found=", ".join(map(str, block)),
        )
    check_numbers(step, learning_rate)
    for name, switch in (
        ("bias_correction", bias_correction),
        ("grad_averaging", grad_averaging),
        ("mode", mode),
    ):
        require(switch in (0, 1), f"{name} must be 0 or 1", found=switch)
    return ()
