"""`python -m holdfast`, for where the console command is not installed."""

from holdfast_command import command

if __name__ == "__main__":
    command()
