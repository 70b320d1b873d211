"""``python -m refold``: the command line."""

import sys

from refold.adapters.cli import main

if __name__ == "__main__":
    sys.exit(main())
