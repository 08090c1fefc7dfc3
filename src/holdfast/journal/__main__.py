"""`python -m holdfast.journal`: the journal's commands on their own."""

from holdfast.journal.cli import main

if __name__ == "__main__":
    main()
