"""Format: bytes to values and back, and every path. No I/O, no clock."""
