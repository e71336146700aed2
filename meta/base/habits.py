"""Names that people type from habit of torch, NumPy and JAX, and what they are called here.

They are no aliases: one thing has one name. An error gives the right one.
"""

from __future__ import annotations

MODULE: dict[str, str] = {
    "as_tensor": "meta.array",
    "asarray": "meta.array",
    "bitwise_not": "meta.bitwise_invert",
    "bmm": "meta.matmul",
    "cat": "meta.concatenate",
    "clamp": "meta.clip",
    "compile": "meta.vm.compile",
    "concat": "meta.concatenate",
    "empty": "meta.zeros",
    "from_numpy": "meta.array, or meta.from_dlpack to share memory",
    "grid_sampler": "meta.grid_sample",
    "jit": "meta.model.trace",
    "left_shift": "meta.bitwise_left_shift",
    "load": "meta.model.load_weights, or meta.vm.load for a compiled program",
    "manual_seed": "meta.random.seed",
    "mm": "meta.matmul",
    "mod": "meta.remainder",
    "nn": "meta.model for layers, meta.<name> for functions",
    "permute": "meta.transpose",
    "permute_dims": "meta.transpose",
    "power": "meta.pow",
    "rand": "meta.random.uniform",
    "randn": "meta.random.normal",
    "right_shift": "meta.bitwise_right_shift",
    "swapaxes": "meta.swap_axis",
    "tensor": "meta.array",
    "unsqueeze": "meta.expand_dims",
    "value_and_grad": "meta.grad.value_and_grad",
    "vmap": "a batch axis: operators broadcast",
}
"""By a name of the module: what to write."""

ARRAY: dict[str, str] = {
    "data": "x.detach()",
    "dim": "x.ndim",
    "double": 'x.astype("float64")',
    "expand": "meta.broadcast_to(x, shape)",
    "float": 'x.astype("float32")',
    "half": 'x.astype("float16")',
    "long": 'x.astype("int64")',
    "masked_fill": "meta.masked_fill(x, mask, value)",
    "numel": "x.size",
    "repeat": "meta.tile(x, reps), or meta.repeat for elements",
    "requires_grad_": "x.requires_grad = True",
    "view": "x.reshape(shape)",
    "zero_": "x.update(meta.zeros_like(x))",
}
"""By a name of an array's attribute: what to write."""

ARGUMENT: dict[str, tuple[str, ...]] = {
    "dim": ("axis",),
    "dims": ("axes",),
    "input": ("x", "prediction"),
    "keepdim": ("keepdims",),
    "other": ("x2",),
    "reduce": ("reduction",),
    "size_average": ("reduction",),
    "y_pred": ("prediction",),
    "y_true": ("target",),
}
"""By the name of an argument: what it may be called here."""
