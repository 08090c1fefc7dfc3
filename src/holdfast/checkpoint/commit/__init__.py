"""Committing: the protocol, the catalog of records, and puts that tell the truth."""
