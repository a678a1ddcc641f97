"""Servers of a run as its options name them: addresses, and lists (DNS names, files) that are followed while it lasts."""

import os.path
from collections.abc import Sequence

from msgspec import Struct

from inferload.base.errors import UsageError
from inferload.client.connection.target import Target


def hosts_of(values: Sequence[str]) -> list[str]:
    """Return the address of each server that values of --host and --also-host name; UsageError for a list without one."""
    return _read(values) if any(map(is_list, values)) else list(values)


def is_list(value: str) -> bool:
    """Return True for a DNS name or a file: it can name other servers later."""
    return value.startswith("dns://") or ("://" not in value and os.path.isfile(value))


def _read(values: Sequence[str]) -> list[str]:
    from inferload.servers import metrics_targets  # of runs that name lists

    try:
        return metrics_targets.urls_of(values, metrics_targets.Wanted("", Target.parse))
    except UsageError as error:
        raise UsageError(f"host {error}") from error


class Followed(Struct, frozen=True):
    """Values of the options of which one is a list. `hosts`: of turns; `pages`: of --metrics-url. Empty: nothing changes."""

    hosts: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    @classmethod
    def of(cls, hosts: Sequence[str], pages: Sequence[str]) -> "Followed":
        """Return the values that are to be read again during a run."""
        return cls(*(tuple(values) if any(map(is_list, values)) else () for values in (hosts, pages)))

    def __bool__(self) -> bool:
        return bool(self.hosts or self.pages)

    def read(self) -> tuple[list[str], list[str]]:
        """Return the addresses of servers and of pages that the lists have now; UsageError if one cannot be read."""
        from inferload.servers import metrics_targets

        return _read(self.hosts), metrics_targets.urls_of(self.pages)
