"""The errors of this package. Every module here may raise them; the command line prints them in one line."""


class ClusterError(Exception):
    """Something about the cluster did not work; the message says what and what to do."""


class MissingToolError(ClusterError):
    """This machine lacks a program or a right; the message names what to install."""


class CommandError(ClusterError):
    """A program that was run for the caller ended badly.

    Attributes:
        returncode: its exit status.
        stdout: what it wrote to standard output.
        stderr: what it wrote to standard error.
    """

    def __init__(self, message: str, returncode: int, stdout: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
