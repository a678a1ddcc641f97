"""Units in which other sources give the measures that are read from them."""

import re

from inferload.figures.rate_figures import GOODPUT, OUTPUT, TOTAL, TURNS
from inferload.figures.turn_figures import E2E, ITL, TPOT, TTFT

LATENCIES = (TTFT.key, TPOT.key, ITL.key, E2E.key)

_MS = {
    1e-6: ("ns", "nanosecond", "nanoseconds"),
    # casefold makes a Greek mu of the micro sign
    1e-3: ("us", "\u03bcs", "usec", "microsecond", "microseconds", "微秒"),
    1.0: ("ms", "msec", "msecs", "millisecond", "milliseconds", "毫秒"),
    1e3: ("s", "sec", "secs", "second", "seconds", "秒"),
}
_TO_MS = {name: factor for factor, names in _MS.items() for name in names}
_TIMES = {"s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "秒": 1.0}
_TIMES |= dict.fromkeys(("min", "mins", "minute", "minutes", "分钟"), 1 / 60)
_COUNTED = {
    "turns": ("req", "reqs", "request", "requests", "query", "queries", "turn", "turns", "请求"),
    "tokens": ("t", "tok", "toks", "token", "tokens"),
}
_RATES = {
    kind: {f"{name}/{time}": factor for name in names for time, factor in _TIMES.items()}
    for kind, names in _COUNTED.items()
}
_RATES["turns"] |= {"qps": 1.0, "rps": 1.0, "qpm": 1 / 60, "rpm": 1 / 60}
_RATES["tokens"] |= {"tps": 1.0, "tpm": 1 / 60}
_RATES["tokens"] |= {f"k{name}": 1000 * factor for name, factor in list(_RATES["tokens"].items())}
_OF_A_TOKEN, _OF_A_REQUEST = (
    _TO_MS | {f"{name}/{part}": factor for name, factor in _TO_MS.items() for part in parts}
    for parts in (("tok", "token"), ("req", "request", "turn"))
)
_OF_MEASURE = {
    **dict.fromkeys((TTFT.key, E2E.key), _OF_A_REQUEST),
    **dict.fromkeys((TPOT.key, ITL.key), _OF_A_TOKEN),
    **dict.fromkeys((TURNS.key, GOODPUT.key), _RATES["turns"]),
    **dict.fromkeys((OUTPUT.key, TOTAL.key), _RATES["tokens"]),
}
_OTHERS = (
    "% x gb mb kb gib mib kib tb bytes byte b w kw watt watts j mj joule joules usd $ ratio count counts steps step user users "
    "h hr hrs hour hours d day days min mins minute minutes m frames images samples 分钟 小时 天 次 倍 个 元"
)
COUNTED = (*_COUNTED["turns"], *_COUNTED["tokens"])
_KNOWN = {*_TO_MS, *_RATES["turns"], *_RATES["tokens"], *COUNTED, *_OTHERS.split()}
_QUOTIENT = re.compile(r"/\s*[^\W\d]")  # a slash before a word
_ENDINGS = ("seconds", "second", "bytes", "watts", "joules", "hertz")


def factor(measure: str, unit: str) -> float | None:
    """Return the factor from a unit to that of a measure (ms, turns/s, tok/s); None for a unit that it does not have."""
    return _OF_MEASURE[measure].get(plain(unit))


def plain(unit: str) -> str:
    """Return the form of a unit in the tables: lower case, with a slash for `per`, without blanks."""
    return re.sub(r"\s+", "", re.sub(r"\bper\b|每", "/", unit.casefold()))


def is_unit(word: str) -> bool:
    """Return True for a word that is a unit of any quantity, or built like one: `tokens/sec/user`, and not `99/100 (99 %)`."""
    return _QUOTIENT.search(word) is not None or plain(word) in _KNOWN or word.endswith(_ENDINGS)
