"""Operators of `meta` inside of other systems' programs: `meta.interop.torch` puts them under
PyTorch's own functions. Nothing of it is imported before it is asked for.
"""
