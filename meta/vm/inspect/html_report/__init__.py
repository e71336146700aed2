"""How a compiled program is shown: `page` writes all that is known of one as a page of HTML.

A page is one file that refers to no other and has no script: what is long opens at a click. It is
written by `Executable.show` and by the commands ``compile`` and ``profile`` with ``--html``.

overview.py: the facts, also what a notebook shows of an executable. changes.py: the program before
and after each pass. kernels.py: who runs each instruction, why, and for how long. page.py puts it
together, with the picture of `meta.analysis.memory_diagram`.
"""
