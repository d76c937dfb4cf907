"""``python -m hpcdi``: the same as the command ``hpcdi``."""

import sys

from hpcdi.cli import main

if __name__ == "__main__":
    sys.exit(main())
