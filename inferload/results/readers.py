"""Readers of the sockets of a run: how many workers use which one, why, and how to change it. No I/O."""

from collections import Counter
from collections.abc import Iterable, Sequence

from inferload.results.documents.summary_document import ReaderUse
from inferload.turns.socket_reader import SocketReader

_TARGETS = 3  # in a text


def uses_of(workers: Iterable[Sequence[SocketReader]]) -> list[ReaderUse]:
    """Return an entry for each reader and reason, in order of appearance, from the readers of each worker."""
    targets: dict[tuple[str, str, str], dict[str, None]] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for readers in workers:
        for own in readers:
            targets.setdefault((own.reader, own.why, own.remedy), {})[own.target] = None
        counts.update({(own.reader, own.why, own.remedy) for own in readers})
    return [
        ReaderUse(reader=reader, why=why, remedy=remedy, targets=list(named), workers=counts[reader, why, remedy])
        for (reader, why, remedy), named in targets.items()
    ]


def common(uses: Sequence[ReaderUse]) -> str | None:
    """Return the reader of all connections, `mixed` if they differ, None if not known."""
    names = {use.reader for use in uses}
    return None if not names else names.pop() if len(names) == 1 else "mixed"


def text(uses: Sequence[ReaderUse]) -> str:
    """Return the readers with the reasons; with targets or numbers of workers where these differ; "" if not known."""
    named = Counter(target for use in uses for target in use.targets)
    by_worker = any(count > 1 for count in named.values())
    parts = []
    for use in uses:
        why = f" ({use.why})" if use.why else ""
        where = ""
        if len(uses) > 1 and set(use.targets) != set(named):
            more = len(use.targets) - _TARGETS
            where += f" for {', '.join(use.targets[:_TARGETS])}" + (f" and {more} more" if more > 0 else "")
        if by_worker:
            where += f" in {use.workers} worker{'' if use.workers == 1 else 's'}"
        parts.append(f"{use.reader}{why}{where}")
    return "; ".join(parts)


def advice(uses: Sequence[ReaderUse]) -> list[str]:
    """Return a sentence for each reason that can be removed."""
    return [
        "sockets are read by Python code, where each token costs more, because "
        f"{use.why}{' is set' if '=' in use.why else ''}: {use.remedy}"
        for use in uses
        if use.remedy
    ]
