"""Compiled programs as C libraries: `Executable.export`."""
