"""A server asked directly and through what is in front of it: the same turns, and what differs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean, stdev

from inferload.base.clock import NS_PER_MS, token_hex
from inferload.base.numbers import number
from inferload.campaign.machine.checks import Check
from inferload.campaign.machine.effects import COUNTING, answered
from inferload.campaign.machine.server_evidence import SDK_HEADERS, ServerEvidence, raw, send
from inferload.client.client import ClientSettings
from inferload.client.fetch import Fetched
from inferload.client.refusals import text_of
from inferload.results.statistics.distributions import t_quantile

_PAIRS = 10  # of short turns, in turn to each
_OWN = {"date", "content-length", "connection", "keep-alive", "x-request-id"}  # headers that differ by themselves
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Side:
    """One way to the server. `bad`: its answer to a value of the wrong type; `packed`: content encoding for an SDK."""

    evidence: ServerEvidence
    bad: Fetched | None = None
    packed: str = ""
    keeps_id: bool = False  # the X-Request-Id of a request is in its answer

    @property
    def status(self) -> int | None:
        """Status of the answer to a bad value; None without one."""
        return None if self.bad is None else self.bad.status

    @property
    def refusal(self) -> str:
        """Status and text of the answer to a bad value."""
        if self.bad is None:
            return "no answer"
        return f"{self.bad.status} {' '.join(text_of(self.bad.text).split())[:_SHOWN]}"


@dataclass(frozen=True, slots=True)
class BothWays:
    """Both ways to a server. `added_ms`: by measure, of each pair of turns: through - direct."""

    direct: Side
    through: Side
    added_ms: Mapping[str, list[float]]


def gather(direct: ServerEvidence, through: ServerEvidence) -> BothWays:
    """Send pairs of turns to a server on both ways, one at a time, and a bad request on each."""
    added: dict[str, list[float]] = {"TTFT": [], "E2E": []}
    ways = (direct, through)
    for _ in range(_PAIRS):
        records = [send(way.settings, COUNTING, {way.limit_key: 4}).record for way in ways]
        for name, end in (("TTFT", "first_ns"), ("E2E", "closed_ns")):
            times = [(getattr(record, end), record.sent_ns) for record in records if record.ok]
            if len(times) == 2 and all(None not in pair for pair in times):
                first, second = ((at - sent) / NS_PER_MS for at, sent in times)
                added[name].append(second - first)
    return BothWays(_side(direct), _side(through), added)


def _side(e: ServerEvidence) -> Side:
    own = e.settings
    packed = raw(_with_headers(own, SDK_HEADERS), {e.limit_key: 4})
    name = token_hex(8)
    with_id = send(own, COUNTING, {e.limit_key: 4}, (("X-Request-Id", name),))
    return Side(
        e,
        raw(own, {e.limit_key: {}}),
        "" if packed is None else packed.headers.get("content-encoding", ""),
        answered(with_id) and name in (with_id.record.request_id or ""),
    )


def _with_headers(settings: ClientSettings, headers: tuple[tuple[str, str], ...]) -> ClientSettings:
    return replace(settings, headers=(*settings.headers, *headers))


def _time(both: BothWays) -> str:
    texts = []
    for name, added in both.added_ms.items():
        if len(added) < 2:
            return "not known: its turns failed"
        half = t_quantile(len(added) - 1, 0.975) * stdev(added) / sqrt(len(added))
        low, high = mean(added) - half, mean(added) + half
        texts.append(f"{name} {mean(added):+.2f} ms (95 %: {low:+.2f} to {high:+.2f})")
    pairs = " and ".join(map(str, dict.fromkeys(map(len, both.added_ms.values()))))
    return f"{', '.join(texts)}; {pairs} pairs of turns"


def _arrivals(both: BothWays) -> str:
    streams = (both.through.evidence.stream, both.direct.evidence.stream)
    through, direct = (f"{each.events} events, {number(each.events_per_arrival)} together" for each in streams)
    return f"{through} (direct: {direct})"


def joined(both: BothWays) -> bool:
    """Return True if events were joined on the way: as one event, or in one arrival."""
    through, direct = both.through.evidence.stream, both.direct.evidence.stream
    return (through.held and not direct.held) or 4 * through.events < 3 * direct.events


_COUNTS = {"input_tokens": "prompt", "output_tokens": "output", "cached_tokens": "cached"}


def _usage(both: BothWays) -> list[str]:
    """Return the differences of two answers to one prompt. Cached tokens depend on the order: only whether there are some."""
    records = [side.evidence.plain for side in (both.through, both.direct)]
    found = []
    for name, words in _COUNTS.items():
        counts = [getattr(record, name, None) for record in records]
        alike = name != "output_tokens" or len({getattr(record, "finish_reason", None) for record in records}) == 1
        if len({count is None for count in counts}) > 1 or (
            name != "cached_tokens" and alike and counts[0] != counts[1]
        ):
            through, direct = ("none" if count is None else count for count in counts)
            found.append(f"{words} tokens {through} (direct: {direct})")
    return found


def lost_fields(both: BothWays) -> list[str]:
    """Return the fields that work directly and not through what is between."""
    found = []
    for what, direct in both.direct.evidence.effects.items():
        through = both.through.evidence.effects.get(what)
        lost = direct.state == "seen" and (through is None or through.state != "seen")
        if through is not None and (lost or (direct.read and through.read is False)):
            found.append(f"{what} ({through})" if lost else f"{what} (a wrong type is refused directly, taken through)")
    return found


def _headers(both: BothWays) -> str:
    through, direct = ({*side.evidence.headers} - _OWN for side in (both.through, both.direct))
    parts = [
        f"{sign}{name}" for sign, names in (("+", through - direct), ("-", direct - through)) for name in sorted(names)
    ]
    return " ".join(parts) or "the same"


BOTH_WAYS: tuple[Check[BothWays], ...] = (
    Check("time added", _time),
    Check(
        "events",
        _arrivals,
        "the way joins events: TTFT and ITL are its own; see docs/how-to/gateways.md",
        joined,
    ),
    Check(
        "usage",
        lambda both: "; ".join(_usage(both)) or "the same",
        "token counts, and TPOT, are those of what is between",
        _usage,
    ),
    Check(
        "fields",
        lambda both: "; ".join(lost_fields(both)) or "the same effects",
        "the way drops or changes these fields: the load is another than planned",
        lost_fields,
    ),
    Check("headers", _headers),
    Check(
        "X-Request-Id",
        lambda both: (
            None
            if not both.direct.keeps_id
            else "reaches the server"
            if both.through.keeps_id
            else "does not reach the server"
        ),
        "headers of requests are changed on the way; session headers may be too",
        lambda both: both.direct.keeps_id and not both.through.keeps_id,
    ),
    Check(
        "errors",
        lambda both: f"{both.through.refusal} (direct: {both.direct.refusal})",
        "the way answers for the server: causes of failures are told apart with the direct address",
        lambda both: both.through.status != both.direct.status,
    ),
    Check(
        "compression",
        lambda both: (
            f"{both.through.packed or 'none'} for clients that accept it (direct: {both.direct.packed or 'none'})"
        ),
    ),
)
