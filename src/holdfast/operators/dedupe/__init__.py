"""`distinct` and `dedupe`."""
