"""The journal's bytes: frames, columns, segments, indexes, and the paths of its files. No I/O."""
