"""File descriptors of this process, with a reserve for the run's files."""

import os
import resource

# Descriptors for the run's files: parts of turns, tables, marks, and the pipes of the report process.
RESERVED = 16
_HIGHEST = 1 << 20


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit, at most 2**20."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _HIGHEST if hard == resource.RLIM_INFINITY else min(hard, _HIGHEST)
    if soft != resource.RLIM_INFINITY and soft < highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))


def limit() -> int:
    """Return the soft limit of open files."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _HIGHEST if soft == resource.RLIM_INFINITY else soft


def left() -> int:
    """Return the number of further connections that can be opened."""
    return max(0, limit() - RESERVED - len(os.listdir("/dev/fd")) + 1)  # the listing itself takes one


def is_one_left() -> bool:
    """Return True if the reserve stays free after one more connection.

    Opens and closes as many descriptors, in about 10 us for any number of open ones, and so counts gaps in their numbers, too.
    """
    opened: list[int] = []
    try:
        for _ in range(RESERVED + 1):
            opened.append(os.dup(2))
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


def why_none() -> str:
    """Return the message for a connection that cannot be opened for lack of descriptors."""
    return f"the limit of {limit()} open files is reached; raise it with ulimit -n, or use more workers"
