"""Looking at a compiled program: functions over `meta.vm.run.compiled_program.CompiledProgram`.

`profile.py`: times. `debug.py`: values. `explain.py`: who runs what, and why not others.
`summary.py`: kernels, memory, what it takes and returns. `traces.py`: traces in Chrome's format.
`html_report.py` writes all of it to a page, with `graph_svg.py` and `pass_changes.py`.
"""
