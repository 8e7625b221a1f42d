"""`python -m fpmc` is `fpmc`."""

import sys

from fpmc.cli import main

if __name__ == "__main__":                              # not in the processes that a command starts
    sys.exit(main())
