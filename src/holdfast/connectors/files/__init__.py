"""Files in a directory as a source.

Read first:
- `source`: the declaration. `reader`: what it does while a pipeline runs.
- `pieces`, `sizes`: how much of the files one epoch takes. `row_ranges`: parts of a file.
- `file_log`: which files were read, by digest.
- `frames`: files into a DataFrame, names as literals.
"""
