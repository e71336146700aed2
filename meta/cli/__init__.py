"""The command line, ``python -m meta COMMAND``.

To add a command, declare its arguments in `arguments.py` and name there the function that runs it:
it takes the options and returns the exit status.
"""
