"""`python -m holdfast.journal`: the journal's commands on their own."""

from holdfast.journal.cli import journal_app

if __name__ == "__main__":
    journal_app(prog_name="holdfast journal")
