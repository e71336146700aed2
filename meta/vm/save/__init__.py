"""Compiled programs on disk: folders that users save and load, and the program cache."""
