"""`python -m holdfast.guard`."""

from holdfast.guard.cli import main

main()
