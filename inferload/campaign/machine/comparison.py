"""Comparison of a server reached directly and through a proxy, gateway or router, with the same turns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from inferload.base.clock import NS_PER_MS, token_hex
from inferload.campaign.machine.checks import Check, arrivals
from inferload.campaign.machine.server_evidence import SDK_HEADERS, ServerEvidence, raw, send, unseen
from inferload.client.refusals import text_of
from inferload.results.statistics.paired_runs import mean_difference

_PAIRS = 10  # of short turns, one through and one direct
_TOKENS = 4
_COMPARED = {
    "input_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "cached_tokens": "cached tokens",
    "finish_reason": "finish reason",
}


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


def gather(through: ServerEvidence, direct: ServerEvidence, pairs: int = _PAIRS) -> BothWays:
    """Send pairs of turns, an even number, one turn at a time, and one invalid request each way."""
    added: dict[str, list[float]] = {"TTFT": [], "E2E": []}
    for step in (1, -1) * (pairs // 2):  # each way is the first one of every second pair
        ways = (through, direct)[::step]
        records = [send(way.settings, unseen(), _short(way)).record for way in ways][::step]
        for name, end in (("TTFT", "first_ns"), ("E2E", "closed_ns")):
            spans = [getattr(each, end) - (each.sent_ns or 0) for each in records if each.ok and each.first_ns]
            added[name] += [(spans[0] - spans[1]) / NS_PER_MS] if len(spans) == 2 else []
    refusals, packed, keeps_id = zip(*map(_readings, (through, direct)), strict=True)
    return BothWays(through, direct, added, refusals, packed, keeps_id)


def _short(e: ServerEvidence) -> dict[str, int]:
    return {e.limit_key: max(_TOKENS, e.least)}


def _readings(e: ServerEvidence) -> tuple[str, str, bool]:
    own, name = e.settings, token_hex(8)
    bad = raw(own, {e.limit_key: {}})
    refusal = "no answer" if bad is None else f"{bad.status} {' '.join(text_of(bad.text).split())[:80]}"
    packed = raw(replace(own, headers=(*own.headers, *SDK_HEADERS)), _short(e))
    with_id = send(own, unseen(), _short(e), (("X-Request-Id", name),)).record
    encoding = "" if packed is None else packed.headers.get("content-encoding", "")
    return refusal, encoding or "none", name in (with_id.request_id or "")


def _time(both: BothWays) -> str:
    texts = []
    for name, added in both.added_ms.items():
        found = mean_difference(added)
        if found is None or found.low is None:
            return "not known: its turns failed"
        texts.append(f"{name} {found.mean:+.2f} ms (95 %: {found.low:+.2f} to {found.high:+.2f})")
    return f"{', '.join(texts)}; {len(added)} pairs of turns"


def _models(both: BothWays) -> str | None:
    names = (both.through.model, both.direct.model)
    return "{} (direct: {})".format(*names) if all(names) and names[0] != names[1] else None


def _alike(both: BothWays, name: str) -> bool:
    """Return True if a field of the plain turn is the same both ways."""
    return getattr(both.through.plain, name, None) == getattr(both.direct.plain, name, None)


def joined(both: BothWays) -> bool:
    """Return True if the proxy or gateway joined events, into one event or in one arrival, or split them."""
    through, direct = both.through.stream, both.direct.stream
    more = through.events / max(1, direct.events)
    if through.tokens and direct.tokens:
        more *= direct.tokens / through.tokens
    elif not _alike(both, "finish_reason"):
        more = 1.0
    return (through.held and not direct.held) or not 3 / 4 <= more <= 4 / 3


def _usage(both: BothWays) -> list[str]:
    """Return the differences between two answers to one prompt.

    Cached tokens depend on the order of the turns, so only whether they are reported is compared. Answers can end at other
    tokens: counts are compared if the reasons to end are the same, and reasons if the counts are.
    """
    same = {"output_tokens": _alike(both, "finish_reason"), "finish_reason": _alike(both, "output_tokens")}
    found = []
    for name, words in _COMPARED.items():
        values = [getattr(way.plain, name, None) for way in (both.through, both.direct)]
        compared = name != "cached_tokens" and same.get(name, True)
        if values.count(None) == 1 or (compared and values[0] != values[1]):
            found.append(words + " {} (direct: {})".format(*("none" if value is None else value for value in values)))
    return found


def _changed_fields(both: BothWays) -> list[tuple[bool, str]]:
    """Return (is lost, text) of each field with an effect directly, of which none is seen through the proxy or gateway."""
    found = []
    for what, direct in both.direct.effects.items():
        through = both.through.effects.get(what)
        if through is not None and direct.state == "seen" and through.state != "seen":
            found.append((through.state != "unknown", f"{what} ({replace(through, read=None)})"))
        elif through is not None and direct.read and through.read is False:
            found.append((True, f"{what} (a wrong type is refused directly, but accepted through the gateway)"))
    return found


def lost_fields(both: BothWays) -> list[str]:
    """Return the fields that have an effect directly, but not through the proxy or gateway."""
    return [text for is_lost, text in _changed_fields(both) if is_lost]


BOTH_WAYS: tuple[Check[BothWays], ...] = (
    Check("model", _models, "other models have other times, unless the proxy or gateway only renames it", _models),
    Check(
        "time added",
        _time,
        "other servers or a cache answer faster, or the way to --direct is slow",
        lambda both: any(len(added) == _PAIRS and max(added) < 0 for added in both.added_ms.values()),
    ),
    Check(
        "events",
        lambda both: f"{arrivals(both.through.stream)} (direct: {arrivals(both.direct.stream)})",
        "TTFT and ITL are those of the proxy or gateway: see docs/how-to/gateways.md",
        joined,
    ),
    Check(
        "usage",
        lambda both: "; ".join(_usage(both)) or "the same",
        "token counts and TPOT are those of the proxy or gateway, or it changes the requests",
        _usage,
    ),
    Check(
        "fields",
        lambda both: "; ".join(text for _, text in _changed_fields(both)) or "the same effects",
        "the proxy or gateway drops or changes these fields, or has other servers behind it: load or figures differ",
        lost_fields,
    ),
    Check(
        "X-Request-Id",
        lambda both: f"{'' if both.keeps_id[0] else 'not '}in the ids of answers" if both.keeps_id[1] else None,
        "the proxy or gateway changes the ids of answers, or drops this header, and possibly session headers too",
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
