"""The command line, ``python -m meta COMMAND``.

A command is a module with ``add(commands)``, which declares its arguments, and ``run(options)``,
which returns the exit status. To add one, write such a module and name it in `main.COMMANDS`.
"""
