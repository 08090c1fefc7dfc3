"""Everything that touches Spark itself: sessions, types, errors, Java, and its private names."""
