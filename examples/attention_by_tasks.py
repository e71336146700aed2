"""Multi-head attention written as tasks: slots, an init with per-device state, forward, backward.

    python examples/attention_by_tasks.py

The signature of the operator says what the tasks read and write. The init task makes a mask and a
factor once per device; the forward and the backward task are functions of torch tensors. From these
follow an operator that runs eagerly and compiled, and its gradient. Results and gradients are
compared with those of torch's `scaled_dot_product_attention`, in float64, and timed.
"""

from dataclasses import dataclass
from math import sqrt

import torch

import meta
from meta.dialect import HANDWRITTEN, Dialect
from meta.op.core import Tensor, Weight, op
from meta.op.core.check import require_float, require_shape
from meta.task import OperatorTasks, OpTaskBinding, OpTaskInvocation, OpTaskSignature

BATCH, STEPS, WIDTH, HEADS = 2, 5, 12, 3


@op
def heads_attention(
    x: Tensor, w_query: Weight, w_key: Weight, w_value: Weight, w_out: Weight, heads: int
) -> Tensor:
    """Causal self-attention of several heads, with its four projections.

    x: (batch, steps, width), floating point. Weights: (width, width). Result: x's type.
    """
    require_float(x, "x")
    for w in (w_query, w_key, w_value, w_out):
        require_shape(w, x.with_shape((x.shape[-1],) * 2), "a weight is not (width, width)")
    return x


@dataclass
class State:
    """What all calls of one length and number of heads share on a device."""

    mask: torch.Tensor
    scale: float


tasks = OperatorTasks(heads_attention, Dialect("example", ("cpu", "cuda"), plevel=HANDWRITTEN))


@tasks.init
def init(x, heads, device):
    """Make the state: x is a type, and the device may be any."""
    _, steps, width = x.static_shape
    mask = torch.full((steps, steps), -torch.inf, device=torch.device(device)).triu(1)
    return State(mask, 1 / sqrt(width // heads))


def split(tensor, heads):
    """(batch, steps, width) -> (batch, heads, steps, width / heads)"""
    return tensor.unflatten(-1, (heads, -1)).transpose(1, 2)


def joined(tensor):
    """(batch, heads, steps, width / heads) -> (batch, steps, width)"""
    return tensor.transpose(1, 2).flatten(2)


def attended(task):
    """Return query, key, value, the probabilities and what they select."""
    x, state = task.get_tensor("x"), task.get_per_device_state()
    heads = task.get_argument("heads")
    q, k, v = (split(x @ task.get_tensor(f"w_{name}"), heads) for name in ("query", "key", "value"))
    scores = (q @ k.mT) * state.scale + state.mask.to(x.dtype)
    p = scores.softmax(-1)
    return q, k, v, p, p @ v


@tasks.forward
def forward(task):
    """Compute the result."""
    selected = attended(task)[-1]
    torch.matmul(joined(selected), task.get_tensor("w_out"), out=task.get_output())


@tasks.backward
def backward(task):
    """Compute the gradients of x and of the weights; the probabilities are computed again."""
    x, dy, state = task.get_tensor("x"), task.get_gradient("out"), task.get_per_device_state()
    q, k, v, p, selected = attended(task)
    rows = x.flatten(0, 1)
    torch.matmul(
        joined(selected).flatten(0, 1).mT, dy.flatten(0, 1), out=task.get_gradient("w_out")
    )
    d_selected = split(dy @ task.get_tensor("w_out").mT, task.get_argument("heads"))
    d_p = d_selected @ v.mT
    d_scores = p * (d_p - (d_p * p).sum(-1, keepdim=True)) * state.scale
    parts = {"query": d_scores @ k, "key": d_scores.mT @ q, "value": p.mT @ d_selected}
    dx = task.get_gradient("x").zero_()
    for name, part in parts.items():
        part = joined(part)
        torch.matmul(rows.mT, part.flatten(0, 1), out=task.get_gradient(f"w_{name}"))
        dx += part @ task.get_tensor(f"w_{name}").mT


def reference(x, *weights):
    """The same by torch."""
    q, k, v = (split(x @ w, HEADS) for w in weights[:3])
    attention = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return joined(attention) @ weights[3]


def main():
    """Run the tasks in every way, and compare."""
    for phase in ("init", "forward", "backward"):
        print(OpTaskSignature.of(heads_attention, phase))

    torch.manual_seed(0)
    shapes = [(BATCH, STEPS, WIDTH), *[(WIDTH, WIDTH)] * 4]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    dy = torch.randn(shapes[0], dtype=torch.float64)
    expected = reference(*tensors)
    gradients = torch.autograd.grad(expected, tensors, dy)
    arrays = [meta.array(t.detach()) for t in tensors]

    # As a task: values are bound to slots, then it runs.
    signature = OpTaskSignature.of(heads_attention, "forward")
    binding = OpTaskBinding(signature).bind_arg("heads", HEADS)
    for slot, array in zip(signature.reads, arrays, strict=True):
        binding.bind(slot.name, array)
    task = OpTaskInvocation(signature, binding)
    y = task.run()
    torch.testing.assert_close(y.torch(), expected.detach())
    for found, g in zip(task.backward(meta.array(dy)).run().values(), gradients, strict=True):
        torch.testing.assert_close(found.torch(), g)
    print(f"{task.state}: {task.state.nbytes} bytes")

    # As an operator: called and differentiated like any other.
    for array in arrays:
        array.requires_grad = True
    heads_attention(*arrays, HEADS).backward(meta.array(dy))
    for array, g in zip(arrays, gradients, strict=True):
        torch.testing.assert_close(array.grad.torch(), g)

    # In a compiled program, with its gradient.
    @meta.model.trace
    def step(x, *weights):
        def loss(x, *weights):
            return (heads_attention(x, *weights, HEADS) * seed).sum()

        return meta.grad.value_and_grad(loss, wrt=range(5))(x, *weights)

    seed, plain = meta.array(dy), [a.detach() for a in arrays]
    program = meta.vm.compile(step, *plain)
    value, found = program(*plain)
    torch.testing.assert_close(value.torch(), (expected * dy).sum().detach())
    for array, g in zip(found, gradients, strict=True):
        torch.testing.assert_close(array.torch(), g)
    print(program.kernels())

    # And what it costs.
    (cost,) = meta.measure(heads_attention, *plain, HEADS, backward=True, budget=2.0)
    times = f"forward {cost.forward.median:.0f} us, backward {cost.backward.median:.0f} us"
    print(f"{cost.dialect}: {times}, bytes {cost.bytes}")


if __name__ == "__main__":
    main()
