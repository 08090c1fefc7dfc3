"""Verbs: arguments in, a value out, an exit code. One file for each group."""
