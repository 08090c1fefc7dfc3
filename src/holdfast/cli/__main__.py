"""`python -m holdfast.cli`, for where the console command is not installed."""

import sys

from holdfast.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
