"""``python -m hpcdi``: the same as the command ``hpcdi``."""

import sys

from hpcdi.utils.python import leave_present_folder

leave_present_folder()  # before anything else is imported

from hpcdi.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
