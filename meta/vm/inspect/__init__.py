"""Looking at a compiled program: its times, values, memory, and who runs what and why.

`html_report/` writes all of it to a page of HTML; notebooks show parts of it as tables.
"""
