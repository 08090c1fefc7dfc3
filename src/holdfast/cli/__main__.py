"""`python -m holdfast.cli`, for where the console command is not installed."""

from holdfast.cli.entry import command

if __name__ == "__main__":
    command()
