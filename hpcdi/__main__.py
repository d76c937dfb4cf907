"""``python -m hpcdi``: the same as the command ``hpcdi``."""

import sys

from hpcdi.utils.python import leave_present_folder

leave_present_folder()  # before anything else is imported

from hpcdi.utils.early import take_signals  # noqa: E402

take_signals(sys.argv[1:])  # before all that takes its time

from collections.abc import Sequence  # noqa: E402

from hpcdi import cli  # noqa: E402
from hpcdi.utils.threads import end_in_spite_of_threads  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Without `argv` it is the program, which then ends."""
    exit_code = 1  # Python's, of an error
    try:
        exit_code = cli.main(argv)
    finally:
        if argv is None:
            end_in_spite_of_threads(exit_code)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
