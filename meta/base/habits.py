"""Names that people type from habit of torch, NumPy and JAX, and what they are called here.

They are no aliases: one thing has one name. An error gives the right one.
"""

from __future__ import annotations

MODULE: dict[str, str] = {
    "Module": "meta.Model",
    "Parameter": "meta.model.parameter",
    "Tensor": "meta.ndarray",
    "as_tensor": "meta.array",
    "asarray": "meta.array",
    "autocast": 'meta.amp.autocast_scope("bfloat16")',
    "autograd": "meta.grad",
    "bitwise_not": "meta.bitwise_invert",
    "bmm": "meta.matmul",
    "cat": "meta.concat",
    "clamp": "meta.clip",
    "clip_grad_norm_": "optimizer.step(clip_norm=1.0), which clips and then updates",
    "compile": "meta.vm.compile",
    "concatenate": "meta.concat",
    "cuda": 'device="cuda", or x.to("cuda")',
    "device": 'the text "cpu" or "cuda:0"',
    "distributions": "meta.random.normal, meta.random.multinomial, ...",
    "empty": "meta.zeros",
    "enable_grad": "nothing: gradients are recorded outside of meta.no_grad()",
    "from_numpy": "meta.array, or meta.from_dlpack to share memory",
    "functional": "meta: the functions are meta.relu, meta.cross_entropy, ...",
    "grid_sampler": "meta.grid_sample",
    "inference_mode": "meta.no_grad()",
    "is_tensor": "isinstance(x, meta.ndarray)",
    "jit": "meta.model.trace",
    "left_shift": "meta.bitwise_left_shift",
    "load": "meta.model.load_weights, or meta.vm.load for a compiled program",
    "manual_seed": "meta.random.seed",
    "mesh_grid": "meta.meshgrid",
    "mirror_pad": 'meta.pad(x, pad_width, "symmetric") or "reflect"',
    "mm": "meta.matmul",
    "mod": "meta.remainder",
    "ndarray_size": "meta.numel",
    "nn": "meta.model for layers, meta.<name> for functions",
    "normal": "meta.random.normal(shape, mean, std)",
    "permute": "meta.permute_dims",
    "power": "meta.pow",
    "rand": "meta.random.uniform",
    "rand_like": "meta.random.uniform(x.shape)",
    "randint": "meta.random.randint(shape, low, high)",
    "randn": "meta.random.normal",
    "randn_like": "meta.random.normal(x.shape)",
    "randperm": "meta.random.permutation(n)",
    "reverse": "meta.flip",
    "right_shift": "meta.bitwise_right_shift",
    "save": "meta.model.save_weights(model, path)",
    "set_default_dtype": 'dtype="float64" at the arrays that are made',
    "set_grad_enabled": "meta.no_grad()",
    "size": "meta.shape, or meta.numel for the number of elements",
    "swap_axis": "meta.swapaxes",
    "tensor": "meta.array",
    "transpose": "meta.permute_dims",
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
    "size": ("shape",),
    "size_average": ("reduction",),
    "tensors": ("arrays",),
    "y_pred": ("prediction",),
    "y_true": ("target",),
}
"""By the name of an argument: what it may be called here."""

MODEL: dict[str, str] = {
    "add_module": "self.name = model",
    "apply": "for model in model.models(): ...",
    "bfloat16": 'model.to("bfloat16")',
    "buffers": "model.state(), without model.parameters()",
    "children": "model.members().values()",
    "cpu": 'model.to("cpu")',
    "cuda": 'model.to("cuda")',
    "double": 'model.to("float64")',
    "float": 'model.to("float32")',
    "half": 'model.to("float16")',
    "modules": "model.models()",
    "named_buffers": "model.state().items(), without model.named_parameters()",
    "named_modules": "model.paths()",
    "register_buffer": "self.name = array, with requires_grad False",
    "register_parameter": "self.name = meta.model.parameter(array)",
    "requires_grad_": "for p in model.parameters(): p.requires_grad = False",
    "zero_grad": "optimizer.zero_grad()",
}
"""By a name of a model's attribute: what to write."""

LAYERS: dict[str, str] = {
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), "meta.model.BatchNorm"),
    "BCELoss": "the function meta.binary_cross_entropy",
    "BCEWithLogitsLoss": "the function meta.binary_cross_entropy_with_logits",
    "CrossEntropyLoss": "the function meta.cross_entropy",
    "L1Loss": "the function meta.l1_loss",
    "MSELoss": "the function meta.mse_loss",
    "Module": "meta.Model",
    "NLLLoss": "the function meta.nll_loss",
    "Parameter": "meta.model.parameter",
    "functional": "the functions meta.relu, meta.cross_entropy, ...",
    "utils": "optimizer.step(clip_norm=1.0), which clips and then updates",
}
"""By a name of `meta.model`: what to write."""

OPTIM: dict[str, str] = {
    "lr_scheduler": "meta.optim.schedule, whose functions give a factor by the number of the step",
}
"""By a name of `meta.optim`: what to write."""

RANDOM: dict[str, str] = {
    "choice": "meta.random.permutation(n)[:k], or meta.random.multinomial(p, k)",
    "default_rng": "meta.random.seed(n), and meta.random.normal(shape): there is one stream",
    "manual_seed": "meta.random.seed",
    "rand": "meta.random.uniform(shape)",
    "randn": "meta.random.normal(shape)",
    "random": "meta.random.uniform(shape)",
    "shuffle": "meta.random.permutation(x)",
    "standard_normal": "meta.random.normal(shape)",
}
"""By a name of `meta.random`: what to write."""

TRAIN: dict[str, str] = {
    "DataLoader": "meta.train.Batches(x, y, size), or torch's DataLoader",
    "Dataset": "meta.train.Batches(x, y, size), or any iterable of pairs",
    "TensorDataset": "meta.train.Batches(x, y, size)",
    "Trainer": "meta.train.fit",
}
"""By a name of `meta.train`: what to write."""

BY_MODULE: dict[str, dict[str, str]] = {
    "meta": MODULE,
    "meta.model": LAYERS,
    "meta.optim": OPTIM,
    "meta.random": RANDOM,
    "meta.train": TRAIN,
}
