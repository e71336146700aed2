"""Runs torch's own operator samples through `meta`: ``python -m tools.torch_samples --help``.

torch describes its operators as entries of a database (``op_db``), each with sample arguments. An
*adapter* says how `meta` does the same as one entry: a function of torch's arguments, one line per
entry in `families/`. To cover one more entry, add a line there.

`entries` reads the database, `check` compares one sample, `report` adds up, `__main__` is the
command.
"""
