"""Roles of servers that share each request: one computes the prompt (prefill), another one the output (decode).

Prefill and decode servers count the same requests and prompts, and prefill one output token for each. So counts of a group are
those of its other servers, times add up, and hits are those of prefill (`servers_window`). A server is only compared with others
of its role. A group is divided if one of its servers is for prefill; one without a role then counts as decode.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from inferload.base.errors import UsageError, instead
from inferload.base.redaction import without_userinfo
from inferload.figures.pages import metric_names as names
from inferload.figures.servers.server_formulas import Floats
from inferload.servers.scrape_http import MetricsUrl

PREFILL, DECODE = names.ROLES
_OPTION = f"write it as --role http://server:8000/metrics={PREFILL} or ={DECODE}"
# Labels of Prometheus' targets, of SGLang, Dynamo and llm-d.
_LABELS = ("role", "engine_type", "disaggregation_mode", "dynamo_component", "llm_d_ai_role")
READ = (names.RUNNING, names.COMPONENT_REQUESTS)  # whose labels say it
_EACH: tuple[tuple[str, dict[str, str]], ...] = (
    (names.FINISHED, {}),
    (names.GENERATION_TOKENS, {}),
    (names.PROMPT_TOKENS_BY_SOURCE, {"source": names.RECEIVED}),
)


class _Counters(Protocol):
    """Series of a server (see `series.ServerSeries`)."""

    @property
    def target(self) -> str: ...
    @property
    def in_front(self) -> bool: ...
    def series(self, metric: str, /, **labels: str) -> Sequence[Any]: ...
    def grown(self, metric: str, /, **labels: str) -> Floats | None: ...


class Role(Struct, frozen=True):
    """Role of a server and what says so."""

    name: str
    source: str  # option, file, label, series or name


def of_option(values: Iterable[str]) -> dict[str, Role]:
    """Return the role of each address in values of --role. UsageError for another form, or two roles of one address."""
    found: dict[str, Role] = {}
    for value in values:
        url, sign, name = value.rpartition("=")
        if not sign or not url or name not in names.ROLES:
            raise UsageError(f"--role {without_userinfo(value)}: no role; {instead(name, names.ROLES, _OPTION)}")
        _add(found, url, url, Role(name, "option"))
    return found


def _add(found: dict[str, Role], key: str, url: str, role: Role) -> None:
    """Add a role, that of an option before that of a file. UsageError for another role from the same source."""
    before = found.get(key, role)
    if before.source == role.source and before.name != role.name:
        raise UsageError(f"--role {without_userinfo(url)}: has two roles; give one")
    found[key] = before if before.source == "option" else role


def of_pages(named: Mapping[str, Role], pages: Iterable[str]) -> dict[str, Role]:
    """Return roles by the target of the page that an address names: of the page, or of its server. UsageError without one."""
    targets = [MetricsUrl.parse(page).target for page in pages]
    found: dict[str, Role] = {}
    for url, role in named.items():
        try:
            target = MetricsUrl.parse(url).target
        except UsageError:
            target = ""
        if target not in targets:
            known = instead(without_userinfo(url), targets) if targets else "none is scraped"
            raise UsageError(f"--role {without_userinfo(url)}: no metrics page of this run; {known}")
        _add(found, target, url, role)
    return found


def of_words(text: str) -> str | None:
    """Return the role that is a word of an address or label; None without one, and with both."""
    found = set(names.ROLES) & set(re.split("[^a-z]+", text.lower()))
    return found.pop() if len(found) == 1 else None


def of_labels(labels: Iterable[Mapping[str, str]]) -> str | None:
    """Return the role in labels of the series of a page; None without one, and with both, as of a page of several servers."""
    found = {of_words(each[name]) for each in labels for name in _LABELS if name in each} - {None}
    return found.pop() if len(found) == 1 else None


def in_series(servers: Iterable[_Counters]) -> dict[str, Role]:
    """Return the roles of servers without one that their counters show, by target.

    Decode: its prompts were received from another server, and it has several output tokens for a request. Prefill: each of its
    requests has one output token, and another server received prompts. A server without requests shows nothing.
    """
    counts = {server.target: [_last(server, metric, labels) for metric, labels in _EACH] for server in servers}
    receive = {target for target, (requests, tokens, received) in counts.items() if received and tokens > requests}
    of_one = {target for target, (requests, tokens, received) in counts.items() if requests == tokens > 0 == received}
    both = receive | of_one if receive and of_one else ()
    return {target: Role(PREFILL if target in of_one else DECODE, "series") for target in both}


def of(servers: Mapping[str, _Counters], known: Mapping[str, Role]) -> dict[str, Role | None]:
    """Return the role of each inference server by target; None: not known. `known`: of the run, by target."""
    found: dict[str, Role | None] = {target: known.get(target) for target in servers}
    rest = {target: server for target, server in servers.items() if found[target] is None and not server.in_front}
    for target, server in rest.items():
        name = of_labels(series.labels for metric in READ for series in server.series(metric))
        found[target] = Role(name, "label") if name else None
    if any(role.name == PREFILL for role in found.values() if role):  # Dynamo's workers are of one or the other
        workers = (target for target in rest if found[target] is None and rest[target].series(names.COMPONENT_REQUESTS))
        found |= dict.fromkeys(workers, Role(DECODE, "label"))
    found |= in_series(server for target, server in rest.items() if found[target] is None)
    return found | {target: Role(name, "name") for target in rest if not found[target] and (name := of_words(target))}


def _last(server: _Counters, metric: str, labels: Mapping[str, str]) -> float:
    grown = server.grown(metric, **labels)
    return 0.0 if grown is None or not len(grown) else float(grown[-1])


class _HasRole(Protocol):
    @property
    def role_name(self) -> str | None:
        """Name of the role; None: not known."""


_Server = TypeVar("_Server", bound=_HasRole)


def without_prefill(servers: Sequence[_Server]) -> Sequence[_Server]:
    """Return the servers that count each request of the clients once: all but those for prefill, if there are others."""
    return [server for server in servers if server.role_name != PREFILL] or servers


def caching(servers: Sequence[_Server]) -> Sequence[_Server]:
    """Return the servers whose caches save work: those for prefill, if there are any."""
    return [server for server in servers if server.role_name == PREFILL] or servers
