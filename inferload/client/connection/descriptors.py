"""File descriptors of this process: how many of them connections may take, so that the run's own files find some."""

import os
import resource

# Kept free for the run's own files: parts of turns, tables, marks, and the pipes of the report's process.
RESERVED = 16
_HIGHEST = 1 << 20


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _HIGHEST if hard == resource.RLIM_INFINITY else min(hard, _HIGHEST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """The soft limit of open files."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _HIGHEST if soft == resource.RLIM_INFINITY else soft


def left() -> int:
    """Return the number of further connections for which there are descriptors."""
    return max(0, limit() - RESERVED - len(os.listdir("/dev/fd")) + 1)  # the listing itself takes one


def is_one_left() -> bool:
    """Return whether one more connection leaves the reserved descriptors free.

    Opens and closes as many: some 10 us, however many are open. Free numbers below the highest open one are counted too.
    """
    taken: list[int] = []
    try:
        for _ in range(RESERVED + 1):
            taken.append(os.dup(2))
    except OSError:
        return False
    finally:
        for descriptor in taken:
            os.close(descriptor)
    return True


def why_none() -> str:
    """Why no connection can be opened, and the remedy."""
    return f"the limit of {limit()} open files is reached; raise it with ulimit -n, or use more workers"
