"""JSON payloads: rows to texts and back, without losing anything."""
