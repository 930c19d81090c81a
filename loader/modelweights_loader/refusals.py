"""Says in words why the kernel refused to measure residency: the same number has several causes, with other remedies.

Called by `residency` on the way to a worse method. Must not import torch.

    ENOSYS   kernel before 6.5 | seccomp profile that does not know the call | sandbox with a kernel of its own
    EPERM    the file belongs to another user | seccomp profile that forbids the call
"""

from __future__ import annotations

import errno
import os

CACHESTAT_SINCE = (6, 5)
# In /proc/self/status: 0 none, 1 strict, 2 a filter.
_SECCOMP_FILTER = "2"
_OTHER_USER = "this user neither owns the file nor may write it"
_WORDS = {
    errno.EACCES: "this user may not read the file",
    errno.EOPNOTSUPP: "this file system does not support it",
    errno.ENODEV: "this file can't be mapped, as with direct I/O",
}


def describe_refusal(number: int | None, what: str = "") -> str:
    """Says an errno in words.

    Args:
        number: Of the system call.
        what: Words to use in place of the usual ones.

    Returns:
        For example `EACCES: this user may not read the file`.
    """
    code = number or 0
    return f"{errno.errorcode.get(code, code)}: {what or _WORDS.get(code) or os.strerror(code)}"


def describe_other_user() -> str:
    """Says that only the owner, or who may write, gets true answers.

    Returns:
        One line.
    """
    return describe_refusal(errno.EPERM, _OTHER_USER)


def describe_cachestat_refusal(number: int, *, refused_for_own: bool, release: str = "", status: str = "") -> str:
    """Says why cachestat(2) was refused.

    Args:
        number: The errno.
        refused_for_own: Whether it is refused as well for a file that certainly is this process's own.
        release: Of the kernel; default: of this one.
        status: Path of /proc/self/status, for tests.

    Returns:
        One line with the remedy where there is one.
    """
    if number == errno.EPERM:
        forbidden = "a seccomp profile forbids it, even for a file of one's own: allow cachestat there"
        return describe_refusal(number, forbidden if refused_for_own else _OTHER_USER)
    if number != errno.ENOSYS:
        return describe_refusal(number)
    release = release or os.uname().release
    if _parse_release(release) < CACHESTAT_SINCE:
        return describe_refusal(number, f"this kernel ({release}) is older than Linux 6.5, which brought it")
    if _has_seccomp_filter(status or "/proc/self/status"):
        what = f"the kernel ({release}) has it, but the seccomp profile does not know it: update the container runtime"
    else:
        what = f"the kernel ({release}) should have it, but a sandbox or its configuration takes it away"
    return describe_refusal(number, what)


def _parse_release(release: str) -> tuple[int, int]:
    numbers = release.split(".")
    try:
        return int(numbers[0]), int("".join(filter(str.isdigit, numbers[1][:3])))
    except (IndexError, ValueError):
        return CACHESTAT_SINCE


def _has_seccomp_filter(status: str) -> bool:
    try:
        with open(status, encoding="utf-8", errors="replace") as file:
            return any(line.split()[1:] == [_SECCOMP_FILTER] for line in file if line.startswith("Seccomp:"))
    except OSError:
        return False
