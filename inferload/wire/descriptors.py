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
    """How many more connections there is room for. The kernel gives out the lowest free number, which tells how many are taken."""
    try:
        lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    os.close(lowest)
    return max(0, limit() - RESERVED - lowest)


def why_none() -> str:
    """Why no connection can be opened, and the remedy."""
    return f"the limit of {limit()} open files is reached; raise it with ulimit -n, or use more workers"
