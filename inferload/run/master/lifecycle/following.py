"""Servers that join and leave during a run: lists of the options are read again, and each change is a mark."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

import gevent

from inferload.base.errors import UsageError
from inferload.base.redaction import without_userinfo
from inferload.base.threads import in_thread
from inferload.client.connection.target import Target
from inferload.run.master.lifecycle.marks import Marks
from inferload.run.master.lifecycle.preflight import Preflight
from inferload.run.master.lifecycle.scraper_process import Scraping
from inferload.run.master.workers.workers import WorkerChannel
from inferload.run.process import protocol
from inferload.servers import roles

LOOK_S = 2.0
MOST_CHANGES = 200  # marks, connections and scrapers of a list that never rests have an end

_Addresses = tuple[list[str], list[str]]  # of servers and of pages


class Following:
    """Servers of a run whose options name lists. `read`: returns the addresses that the lists have now, as `Followed.read`.

    A list that changes counts once two looks in a row found the same: a file may be half written, and a name flap. One that
    cannot be read, or is empty, changes nothing. `every`, `every_page`: addresses so far; `joined`: pages that did, or came back.
    """

    def __init__(
        self,
        read: Callable[[], _Addresses],
        preflight: Preflight,
        marks: Marks,
        channel: WorkerChannel,
        scraping: Scraping | None,
    ) -> None:
        spec = preflight.spec
        self.every = dict.fromkeys(target.url for target in spec.targets)
        self.every_page = dict.fromkeys(preflight.metrics_urls)
        self.joined: dict[str, None] = {}
        self._read, self._marks, self._channel, self._scraping = read, marks, channel, scraping
        self._followed, self._models, self._roles = spec.followed, spec.targets, preflight.roles
        self._targets, self._pages = list(spec.targets), list(preflight.metrics_urls)
        # Default pages are at the path of those that the preflight found.
        found = (page.removeprefix(each.origin) for page in self._pages for each in spec.targets)
        paths = found if spec.metrics_urls is None else ()
        self._page_path = next((path for path in paths if path.startswith("/")), None)
        self._candidate: _Addresses | None = None
        self._unread = False
        self._changes = 0

    @property
    def left(self) -> list[str]:
        """Pages that left, and did not come back."""
        return [page for page in self.every_page if page not in self._pages]

    @property
    def _last(self) -> str:
        return "; further changes are not followed" if self._changes == MOST_CHANGES else ""

    def look_on(self) -> None:
        """Look every LOOK_S, in a greenlet."""
        while self._changes < MOST_CHANGES:
            gevent.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Read the lists once, in a thread: names and disks can be slow."""
        try:
            found = in_thread(self._read)
        except UsageError as error:
            if not self._unread:
                self._changes += 1
                self._marks.add("targets_unread", f"{error}; the servers stay as they are{self._last}")
            self._unread, self._candidate = True, None
            return
        self._unread = False
        if found == self._candidate:
            self._apply(*found)
        self._candidate = found

    def _apply(self, hosts: Sequence[str], pages: Sequence[str]) -> None:
        targets = list(dict.fromkeys(self._like(Target.parse(url)) for url in hosts)) or self._targets
        texts = [
            *_changed([target.url for target in self._targets], [target.url for target in targets]),
            *(_changed(self._pages, pages, "page ") if pages else ()),
        ]
        if self._page_path is not None:
            pages = [target.origin + self._page_path for target in targets]
        pages = list(dict.fromkeys(pages)) or self._pages
        if not texts:
            return
        self._changes += 1
        if self._scraping is not None and pages != self._pages:
            self._scraping.change(pages, self._followed.pages or self._followed.hosts)
        at_ns = self._channel.earliest_ns()
        if targets != self._targets:
            fields = [asdict(target) for target in targets]
            self._channel.announce(protocol.TARGETS, at_ns=at_ns, targets=fields, lists=self._followed.hosts)
        count = f"{len(targets)} server{'s' if len(targets) != 1 else ''}"
        self._marks.add("targets", f"{count}: {', '.join(texts)}{self._last}", at_ns, targets=len(targets))
        self.joined |= dict.fromkeys(page for page in pages if page not in self._pages)
        self._targets, self._pages = targets, pages
        self._add_roles()
        self.every |= dict.fromkeys(target.url for target in targets)
        self.every_page |= dict.fromkeys(pages)

    def _add_roles(self) -> None:
        """Add the roles that files of targets name for pages that joined."""
        from inferload.servers import metrics_targets  # of runs whose pages are named

        with suppress(UsageError, OSError):  # the file has changed again
            named = in_thread(metrics_targets.roles_of, self._followed.pages)
            self._roles |= roles.of_pages(named, self._pages) | self._roles

    def _like(self, target: Target) -> Target:
        """Return a target with the API that the preflight found at the others of its path."""
        for known in self._models:
            if (known.given, known.query) == (target.given, target.query):
                return replace(known, scheme=target.scheme, host=target.host, port=target.port)
        return target


def _changed(before: Sequence[str], after: Sequence[str], noun: str = "") -> list[str]:
    """Return what joined and what left, as `+http://a:8000` and `-http://b:8000`, without secrets of queries; 10 at most."""
    texts = [f"+{noun}{without_userinfo(url)}" for url in after if url not in before]
    texts += [f"-{noun}{without_userinfo(url)}" for url in before if url not in after]
    return [*texts[:10], *([f"{len(texts) - 10} more"] if len(texts) > 10 else [])]
