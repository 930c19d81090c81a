"""The one hierarchy of errors of the loader, and the reasons that its reports may carry.

Raised everywhere in the package; turned into an exit code and a report only at the edge, in `cli`.
Must not import anything but the standard library.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_USAGE = 2
EXIT_TRY_AGAIN = 10
EXIT_WILL_NOT_WORK = 20
EXIT_BAD_CHECKPOINT = 30
EXIT_NO_ROOM = 40
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class LoaderError(Exception):
    """A step ended without its result.

    Attributes:
        exit_code: What the process ends with.
        reason: CamelCase word for conditions and alerts.
        message: One line that names the file, the tensor, the cause and what to do.
        retry: Whether the same call may succeed later without any change.
        figures: Figures that the step had measured when it failed, for its report.
    """

    exit_code = EXIT_WILL_NOT_WORK
    reason = "WillNotWork"
    retry = False

    def __init__(self, message: str, *, reason: str | None = None, figures: dict[str, object] | None = None) -> None:
        super().__init__(" ".join(message.split()))
        if reason is not None:
            self.reason = reason
        self.figures: dict[str, object] = figures or {}

    @property
    def message(self) -> str:
        """The error in one line."""
        return str(self)


class UsageError(LoaderError):
    """The command line itself is wrong."""

    exit_code = EXIT_USAGE
    reason = "Usage"


class TryAgainError(LoaderError):
    """A disturbance that may pass: an input/output error, a time-out, a crashed load process."""

    exit_code = EXIT_TRY_AGAIN
    reason = "TryAgain"
    retry = True


class WillNotWorkError(LoaderError):
    """What was asked can't work here: not found, forbidden, an unsafe path, a missing library."""


class BadCheckpointError(LoaderError):
    """The bytes of the checkpoint are wrong; another copy of the same bytes would be too."""

    exit_code = EXIT_BAD_CHECKPOINT
    reason = "BadCheckpoint"


class NoRoomError(LoaderError):
    """Not enough disk or memory."""

    exit_code = EXIT_NO_ROOM
    reason = "NoRoom"
    # Room may come back by itself when another process ends.
    retry = True


class InterruptedByUserError(LoaderError):
    """Ctrl-C."""

    exit_code = EXIT_INTERRUPTED
    reason = "Interrupted"
    retry = True


class TerminatedError(LoaderError):
    """SIGTERM, as the kubelet sends it when a pod is deleted or evicted."""

    exit_code = EXIT_TERMINATED
    reason = "Terminated"
    retry = True


def describe_os_error(error: OSError) -> str:
    """Says an OSError in words, with its symbolic name.

    Args:
        error: What the system call gave.

    Returns:
        For example `EIO: Input/output error`.
    """
    import errno  # noqa: PLC0415 - only on the way to an error

    name = errno.errorcode.get(error.errno or 0, "OSError")
    return f"{name}: {error.strerror or error}"


def error_from_os(error: OSError, path: str, doing: str) -> LoaderError:
    """Maps an OSError on a file of the checkpoint to an error with an exit code.

    Args:
        error: What the system call gave.
        path: The file, as the user knows it.
        doing: The verb, for example `read`.

    Returns:
        The error to raise, `from` the given one.
    """
    import errno  # noqa: PLC0415 - only on the way to an error
    import os  # noqa: PLC0415 - only on the way to an error

    said = f"cannot {doing} {path} ({describe_os_error(error)})"
    if isinstance(error, PermissionError):
        uid = os.geteuid()
        return WillNotWorkError(f"{said}; make it readable for uid {uid}, gid {os.getegid()}", reason="Forbidden")
    # A file in the place of a folder, a loop of links, a name that is too long: no repetition mends these.
    if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}:
        return WillNotWorkError(f"{said}; check the path and what is mounted", reason="NotFound")
    # Also when a server of files says that it has another one there by now.
    if error.errno == errno.ESTALE:
        return TryAgainError(f"{said}; stop what writes there, then try again", reason="FileChanged")
    return TryAgainError(f"{said}; check the storage, then try again", reason="ReadFailed")
