"""Whole columns at a time: Arrow and numpy without any notion of a trace."""
