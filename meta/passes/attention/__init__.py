"""Attention that is written out, read as one operation; the pass is `meta.passes.fuse_attention`.

`axes` and `views` say which dimension is which, `scores` reads the program, `masks` says what masks
become, `found` puts it together. A further way to write attention is a reader in `scores`, or an
operator in `views`.
"""
