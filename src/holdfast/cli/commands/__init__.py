"""One file for each command: its value, how it is built, how it is shown, the command.

A file is the command of its name (`rebuild_catalog.py` is `holdfast rebuild-catalog`). The first
line of its docstring is what `holdfast --help` lists; the file itself is imported only when the
command is called. See CONTRIBUTING.md, "Add a command".
"""
