"""The exception whose message is shown to the user, and its use for errors of the system."""


class UsageError(Exception):
    """Invalid input or configuration. The message is one line: `thing: value: problem; remedy`. The process exits with 2."""


class explained:
    """Context manager that raises UsageError for an OSError of the block: `what`, its reason and `remedy`."""

    def __init__(self, what: object, remedy: str) -> None:
        self._what = what
        self._remedy = remedy

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise UsageError(f"{self._what}: {error.strerror or error}; {self._remedy}") from error
