"""Operators of `meta` inside of other systems' programs: `meta.interop.torch` puts them under
PyTorch's own functions, and `meta.interop.accelerate` makes accelerate take the backend of
torch.compile. Nothing of it is imported before it is asked for.
"""
