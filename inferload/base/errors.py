"""The exception whose message is shown to the user."""


class UsageError(Exception):
    """Invalid input or configuration. The message is one line: `thing: value: problem; remedy`. The process exits with 2."""
