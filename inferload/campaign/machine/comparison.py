"""Comparison of a server reached directly and through a proxy, gateway or router, with the same turns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean, stdev

from inferload.base.clock import NS_PER_MS, token_hex
from inferload.base.numbers import number
from inferload.campaign.machine.checks import Check
from inferload.campaign.machine.effects import COUNTING
from inferload.campaign.machine.server_evidence import SDK_HEADERS, ServerEvidence, raw, send
from inferload.client.refusals import text_of
from inferload.results.statistics.distributions import t_quantile

_PAIRS = 10  # of short turns, one through and one direct
_TOKENS = 4
_OWN = {
    "date",
    "content-length",
    "connection",
    "keep-alive",
    "x-request-id",
}  # headers that differ between any two answers
_COUNTS = {"input_tokens": "prompt", "output_tokens": "output", "cached_tokens": "cached"}


@dataclass(frozen=True, slots=True)
class BothWays:
    """Readings of both ways to a server. Pairs are (through, direct).

    `added_ms`: for each measure, the difference through - direct of each pair of turns. `refusals`: status and text of the answer
    to a value of the wrong type. `packed`: content encoding of answers to an SDK. `keeps_id`: whether the X-Request-Id of a
    request is in its answer.
    """

    through: ServerEvidence
    direct: ServerEvidence
    added_ms: Mapping[str, list[float]]
    refusals: tuple[str, str]
    packed: tuple[str, str]
    keeps_id: tuple[bool, bool]


def gather(through: ServerEvidence, direct: ServerEvidence) -> BothWays:
    """Send pairs of turns, one turn at a time, and one invalid request each way."""
    added: dict[str, list[float]] = {"TTFT": [], "E2E": []}
    for _ in range(_PAIRS):
        records = [send(way.settings, COUNTING, {way.limit_key: _TOKENS}).record for way in (through, direct)]
        for name, end in (("TTFT", "first_ns"), ("E2E", "closed_ns")):
            spans = [
                getattr(each, end) - each.sent_ns for each in records if each.ok and each.sent_ns and each.first_ns
            ]
            added[name] += [(spans[0] - spans[1]) / NS_PER_MS] if len(spans) == 2 else []
    refusals, packed, keeps_id = zip(*map(_readings, (through, direct)), strict=True)
    return BothWays(through, direct, added, refusals, packed, keeps_id)


def _readings(e: ServerEvidence) -> tuple[str, str, bool]:
    own, name = e.settings, token_hex(8)
    bad = raw(own, {e.limit_key: {}})
    refusal = "no answer" if bad is None else f"{bad.status} {' '.join(text_of(bad.text).split())[:80]}"
    packed = raw(replace(own, headers=(*own.headers, *SDK_HEADERS)), {e.limit_key: _TOKENS})
    with_id = send(own, COUNTING, {e.limit_key: _TOKENS}, (("X-Request-Id", name),)).record
    encoding = "" if packed is None else packed.headers.get("content-encoding", "")
    return refusal, encoding or "none", name in (with_id.request_id or "")


def _time(both: BothWays) -> str:
    texts = []
    for name, added in both.added_ms.items():
        if len(added) < 2:
            return "not known: its turns failed"
        half = t_quantile(len(added) - 1, 0.975) * stdev(added) / sqrt(len(added))
        texts.append(f"{name} {mean(added):+.2f} ms (95 %: {mean(added) - half:+.2f} to {mean(added) + half:+.2f})")
    return f"{', '.join(texts)}; {len(added)} pairs of turns"


def _arrivals(both: BothWays) -> str:
    looks = [
        f"{way.stream.events} events, {number(way.stream.events_per_arrival)} together"
        for way in (both.through, both.direct)
    ]
    return "{} (direct: {})".format(*looks)


def joined(both: BothWays) -> bool:
    """Return True if the proxy or gateway joined events: into one event, or in one arrival."""
    through, direct = both.through.stream, both.direct.stream
    return (through.held and not direct.held) or 4 * through.events < 3 * direct.events


def _usage(both: BothWays) -> list[str]:
    """Return the differences between two answers to one prompt.

    Cached tokens depend on the order of the turns, so only whether they are reported is compared.
    """
    records = [both.through.plain, both.direct.plain]
    ended_alike = len({record and record.finish_reason for record in records}) == 1
    found = []
    for name, words in _COUNTS.items():
        counts = [getattr(record, name, None) for record in records]
        compared = name == "input_tokens" or (name == "output_tokens" and ended_alike)
        if counts.count(None) == 1 or (compared and counts[0] != counts[1]):
            found.append(words + " tokens {} (direct: {})".format(*("none" if n is None else n for n in counts)))
    return found


def lost_fields(both: BothWays) -> list[str]:
    """Return the fields that have an effect directly, but not through the proxy or gateway."""
    found = []
    for what, direct in both.direct.effects.items():
        through = both.through.effects.get(what)
        if through is not None and direct.state == "seen" and through.state != "seen":
            found.append(f"{what} ({through})")
        elif through is not None and direct.read and through.read is False:
            found.append(f"{what} (a wrong type is refused directly, but accepted through the gateway)")
    return found


def _headers(both: BothWays) -> str:
    through, direct = ({*way.headers} - _OWN for way in (both.through, both.direct))
    signs = [*(f"+{name}" for name in sorted(through - direct)), *(f"-{name}" for name in sorted(direct - through))]
    return " ".join(signs) or "the same"


BOTH_WAYS: tuple[Check[BothWays], ...] = (
    Check("time added", _time),
    Check("events", _arrivals, "TTFT and ITL are those of the proxy or gateway: see docs/how-to/gateways.md", joined),
    Check(
        "usage",
        lambda both: "; ".join(_usage(both)) or "the same",
        "token counts and TPOT are those of the proxy or gateway",
        _usage,
    ),
    Check(
        "fields",
        lambda both: "; ".join(lost_fields(both)) or "the same effects",
        "the proxy or gateway drops or changes these fields: the load differs from the planned one",
        lost_fields,
    ),
    Check("headers", _headers),
    Check(
        "X-Request-Id",
        lambda both: (
            ("does not reach the server", "reaches the server")[both.keeps_id[0]] if both.keeps_id[1] else None
        ),
        "the proxy or gateway changes request headers, and possibly session headers too",
        lambda both: not both.keeps_id[0],
    ),
    Check(
        "errors",
        lambda both: "{} (direct: {})".format(*both.refusals),
        "the proxy or gateway answers in place of the server: use the direct address to find the causes of failures",
        lambda both: both.refusals[0][:3] != both.refusals[1][:3],
    ),
    Check("compression", lambda both: "{} for clients that accept it (direct: {})".format(*both.packed)),
)
