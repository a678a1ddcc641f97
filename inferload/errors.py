"""The one exception that a person who runs inferload is meant to read."""


class UsageError(Exception):
    """A mistake in what was asked for: one line that names the thing and the remedy. The process exits with 2."""
