"""Views: a value as lines of text for people. Nothing here reads or writes a store."""
