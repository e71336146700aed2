"""Runs torch's own operator samples through `meta`: ``python -m tools.torch_samples --help``.

torch describes its operators as entries of a database (``op_db``), each with sample arguments. What
`meta` does for an entry follows from the converters of ATen's overloads: an entry needs no line
here. `adapters` has the few that are written by hand, `outside` what only torch has, and
`ambiguous` the entries with several right results.

`entries` reads the database, `run` walks over the samples of an entry and counts, `report` adds up,
`__main__` is the command. `functions`, `overloads` and `enable` each compare one sample.
"""
