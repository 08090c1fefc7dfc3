"""The journal's bytes: frames, columns, segments, indexes, and the paths of its files. No I/O.

Read first:
- `frame`: one batch of events, with its header and its hash.
- `columns`: the body of a frame.
- `segment`, `index`: files of frames, and what is derived from them.
"""
