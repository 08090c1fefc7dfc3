"""Files in a directory as a source.

Read first:
- `source`: the declaration and its reader.
- `file_log`: which files were read, by digest.
- `frames`: files into a DataFrame, names as literals.
"""
