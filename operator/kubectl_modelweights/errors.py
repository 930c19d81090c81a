"""What ends a command with one line on standard error. Raised by `client` and the commands, caught by `cli` alone."""

from typing import Final

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
"""The cluster can't be asked, refuses or has no such object; or `verify` found a difference."""
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class CommandError(Exception):
    """The command can't be done; the message says why and what to do."""
