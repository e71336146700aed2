"""Names of arguments in torch, NumPy and other libraries, and what they are called here."""

from __future__ import annotations

ARGUMENT: dict[str, tuple[str, ...]] = {
    "a": ("x", "x1"),
    "a_max": ("max",),
    "a_min": ("min",),
    "b": ("x2",),
    "ddof": ("correction",),
    "dim0": ("axis1",),
    "dim1": ("axis2",),
    "dim": ("axis",),
    "diagonal": ("k",),
    "dims": ("axes", "axis"),
    "dst": ("root",),
    "end": ("stop",),
    "group": ("over",),
    "input": ("x", "prediction"),
    "keepdim": ("keepdims",),
    "op": ("reduction",),
    "other": ("x2",),
    "reduce": ("reduction",),
    "size": ("shape",),
    "src": ("root",),
    "steps": ("num",),
    "size_average": ("reduction",),
    "tensors": ("arrays",),
    "y_pred": ("prediction",),
    "y_true": ("target",),
}
"""By the name of an argument: what it may be called here."""

NO_ARGUMENT: dict[str, str] = {
    "as_tuple": "meta.nonzero is a tuple of vectors, meta.argwhere a matrix",
    "initial": "meta.maximum(x.max(), initial), or what the reduction is of",
    "non_blocking": "nothing: copies from the device wait where their values are read",
    "rcond": "rtol, or nothing: the default is torch's",
    "unbiased": "correction=1, or correction=0",
    "where": "the function of meta.where(mask, x, neutral), or of x[mask]",
    "alpha": "multiply the other operand first: x + alpha * y",
    "casting": "cast the arguments: x.astype(dtype)",
    "inplace": "x = f(x): operators return new arrays, and a compiled program reuses memory",
    "layout": "arrays are dense",
    "memory_format": "a compiled program chooses the order in memory",
    "order": "arrays are in row-major order",
    "out": "x[...] = result, which writes it into x",
    "pin_memory": "meta.from_dlpack of a pinned torch tensor",
    "num_workers": "nothing: batches of arrays in memory need no processes",
    "retain_graph": "nothing: a graph lives as long as a result that leads to it",
    "requires_grad": "x.requires_grad = True, once the array is there",
    "rounding_mode": 'meta.floor_divide for "floor", meta.trunc(x / y) for "trunc"',
    "split_size_or_sections": "indices_or_sections, how many equal parts or where to cut",
    "set_to_none": "nothing: gradients are set to None",
    "subok": "arrays have no subclasses",
}
"""By the name of an argument that there is not: what to write."""
