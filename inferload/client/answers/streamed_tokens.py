"""Number of tokens that an answer streamed, by its texts. No I/O.

A server's count can contain tokens that were never sent (hidden reasoning, the frame of a tool call, a stop string), and one event
can hold the text of many. Which text came with which event tells, whatever the tokenizer:

* A token begins where a run of letters or digits ends. These begins are a known part of the begins of all tokens, and events
  begin at a sample of all. Of a stream with one token in each event, events begin at all known ones; with drafts of n tokens, at
  one of n. If tokens were counted that are not in the texts, events begin at more of the known ones than the count explains (a
  hypergeometric distribution).
* A text has a greatest plausible number of tokens, and an absolute one: a token has a character, apart from parts of rare ones.
* An event with far more begins inside it than the others has held text.

docs/how-to/other-servers.md has the measured rates of errors.
"""

from __future__ import annotations

from array import array
from math import erfc, exp, lgamma, log, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from inferload.turns.remarks import Remark

TOLERANCE = 0.05  # of TPOT: smaller differences of counts are not looked at
_HIDDEN, _LOW, _HELD = 0.0015, 0.001, 0.0025  # probabilities below which a stream without such tokens is not believed
_FAR = 1.35  # excess from which a count is doubted; drafts are accepted more often in some texts than in others
_SINGLE = 0.97  # of the known begins: events that begin there have one token
_ENOUGH = 50  # known begins of other streams
_DRAFTED = 0.9  # of the known begins: events that begin there, of drafts
# Of an answer alone: events with several tokens that show drafts, and events of which the first is one of many.
_LEAST_DRAFTS, _LEAST_EVENTS = 3, 8
_USUAL_DRAFT = 6  # tokens
_MOST, _SPREAD, _LEAST = (
    log(0.75),
    0.2,
    0.01,
)  # tokens / greatest plausible number: a log-normal distribution, and its floor
_LONGEST = 20.0  # tokens of a draft, as estimated
_FIRST = 2.2  # standard deviations by which a first event has less than the others
_LETTERS, _CJK = (
    12,
    4,
)  # letters of a text without ends of words that count as one begin; a CJK character counts as several

_Ints = npt.NDArray[np.int64]
_OTHER, _LETTER, _DIGIT, _IDEOGRAPH = range(4)
_KINDS = np.array(
    [_LETTER if chr(c).isalpha() or c == ord("_") else _DIGIT if chr(c).isdigit() else _OTHER for c in range(128)]
    + [_LETTER],
    dtype=np.int8,
)
_WIDE = 0x2000  # punctuation, symbols and CJK characters are above
_FIRST_IDEOGRAPH = 0x2E80
_PUNCTUATION = (
    *((0x2000, 0x2070), (0x2190, 0x2C00), (0x3000, 0x3040), (0xFF00, 0xFF10), (0xFF1A, 0xFF21), (0xFFFD, 0xFFFE)),
)


class Streamed(NamedTuple):
    """Tokens that were streamed; None: not known. `by_event`: of each event, if events have very different numbers."""

    tokens: int | None
    by_event: array[int] | None = None
    remark: Remark | None = None


class _Look(NamedTuple):
    begins: int  # known begins of tokens, apart from that of the text
    met: int  # of these: begins of events
    inside: _Ints  # measure of the tokens of each event after its first
    spaced: bool  # events end with a blank: they are words, whatever their tokens
    plausible: float  # greatest plausible number of tokens
    possible: int


def streamed_tokens(text: str, lengths: array[int], tokens: int, begins: list[int]) -> Streamed:
    """Return the streamed tokens of a text. `lengths`: characters of each event; `tokens`: of the server, not below them.

    `begins`: known begins of tokens in earlier streams of the server, and how many of these were begins of events; this one's are
    added. Short answers tell too little by themselves.
    """
    events = len(lengths)
    if events < 2:
        return Streamed(tokens)
    of_events = np.frombuffer(lengths, dtype=np.int32).astype(np.int64)
    look = _look(text, of_events)
    if tokens - events > TOLERANCE * (events - 1):
        doubt = _doubt(look, events, tokens, begins)
        if not look.spaced:
            begins[:] = begins[0] + look.begins, begins[1] + look.met
        if doubt is not None:
            is_single = doubt is Remark.HIDDEN_TOKENS and not look.spaced and look.met >= _SINGLE * look.begins
            return Streamed(events if is_single else None, None, doubt)
        if not _sends_drafts(begins) and int((look.inside > 0).sum()) < _LEAST_DRAFTS:
            return Streamed(None, None, Remark.HIDDEN_TOKENS)  # too short to tell them from drafts
    total = int(look.inside.sum())
    if not total:
        return Streamed(tokens)
    sizes = 1 + (tokens - events) * look.inside / total
    by_length = tokens * of_events / of_events.sum()
    is_long = np.minimum(sizes, by_length).max() > _LONGEST
    least = _LEAST_EVENTS if tokens > _USUAL_DRAFT * events else _LEAST_EVENTS // 2
    is_short = events < least and tokens > events and not _sends_drafts(begins)
    if is_long or is_short or _is_uneven(look.inside, sizes, tokens):
        shares = np.diff(np.floor(np.cumsum(sizes) + 0.5), prepend=0).astype(np.int32)
        return Streamed(tokens, array("i", shares.tobytes()), Remark.HELD_TEXT)
    return Streamed(tokens)


def _sends_drafts(known: list[int]) -> bool:
    """Return True if earlier streams of the server had several tokens in an event."""
    return known[0] >= _ENOUGH and known[1] < _DRAFTED * known[0]


def _doubt(look: _Look, events: int, tokens: int, known: list[int]) -> Remark | None:
    """Return why a count is not that of the texts; None if it can be."""
    plausible = erfc((log(tokens / look.plausible) - _MOST) / _SPREAD / sqrt(2)) / 2
    far = tokens > look.possible or tokens > 1.5 * look.plausible
    if look.spaced:
        return Remark.HIDDEN_TOKENS if far and plausible < _HIDDEN else None
    drawn = tokens - 1, events - 1, min(look.begins, tokens - 1)
    estimate = 1 + (events - 1) * look.begins / max(look.met, 0.5)
    evidence = _tail(*drawn, look.met, more=True) * max(_LEAST, plausible) * _usual(tokens / events)
    doubted = far or look.met >= _SINGLE * look.begins or tokens > _FAR * estimate
    is_single = known[0] >= _ENOUGH and min(known[1] / known[0], look.met / max(1, look.begins)) >= _SINGLE
    if tokens > look.possible or is_single or (evidence < _HIDDEN and doubted):
        return Remark.HIDDEN_TOKENS
    if estimate > _FAR * tokens and look.met < look.begins and _tail(*drawn, look.met, more=False) < _LOW:
        return Remark.LOW_USAGE
    return None


def _usual(per_event: float) -> float:
    """Return how usual a mean number of tokens per event is for drafts, up to 1: few have hardly more than one."""
    more: float = min(1.0, (per_event - 1) / 0.7) ** 1.5
    return max(0.1, more)


def _is_uneven(inside: _Ints, sizes: npt.NDArray[np.float64], tokens: int) -> bool:
    """Return True if one event has far more tokens than drafts of the mean of the others, or the first one has far fewer."""
    events, top = len(inside), int(inside.max())
    rest = int(inside.sum()) - top
    accepted = (rest + 1) / (rest + events)
    per_event = 1 + rest / (events - 1) * (tokens - events) / (rest + top)
    if events * accepted**top * _usual(per_event) < _HELD:
        return True
    others, mean = inside[1:], float(inside[1:].mean())
    moved = abs(sizes[0] - tokens / events) > TOLERANCE * (tokens - sizes[0])
    return bool(moved and inside[0] < mean - _FIRST * max(float(others.std()), sqrt(mean)))


def _tail(tokens: int, drawn: int, begins: int, met: int, more: bool) -> float:
    """Return (a close bound of) the probability that `drawn` of the tokens meet so many of the begins, or more; else or fewer."""
    others = tokens - begins
    if not max(0, drawn - others) <= met <= min(drawn, begins):
        return 0.0
    exactly = exp(_choices(begins, met) + _choices(others, drawn - met) - _choices(tokens, drawn))
    up, down = (begins - met) * (drawn - met), met * (others - drawn + met)
    further = max(1, (met + 1) * (others - drawn + met + 1))
    ratio = up / further if more else down / ((begins - met + 1) * (drawn - met + 1))
    return 1.0 if ratio >= 1 else min(1.0, exactly / (1 - ratio))


def _choices(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _look(text: str, lengths: _Ints) -> _Look:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kinds, wide = _kinds(codes)
    before, here = codes[:-1], codes[1:]
    ends_word = (kinds[:-1] != kinds[1:]) & (kinds[:-1] > _OTHER) & (here != ord("'")) & (here != ord("\u2019"))
    after_mark = (here == ord(" ")) & ~np.isin(before, [ord(c) for c in " \t\r\n"])
    begins = np.concatenate([[False], ends_word | after_mark])
    ends = np.cumsum(lengths)
    starts = ends - lengths
    counted = np.concatenate([[0], np.cumsum(begins)])
    inside = counted[ends] - counted[np.minimum(starts + 1, ends)]
    letters = np.concatenate([[0], np.cumsum(np.where(wide, _CJK, 1) * (kinds > _OTHER))])
    met = int(begins[starts[1:]].sum())
    return _Look(
        begins=met + int(inside.sum()),
        met=met,
        inside=inside + (letters[ends] - letters[starts]) // _LETTERS,
        spaced=2 * int((codes[ends - 1] == ord(" ")).sum()) > len(lengths),
        plausible=_plausible(codes, kinds, wide),
        possible=len(codes) + 2 * int((codes >= 0x80).sum()),
    )


def _kinds(codes: npt.NDArray[np.uint32]) -> tuple[Any, Any]:
    """Return the kind of each character, and which are not of an alphabet."""
    kinds = _KINDS[np.minimum(codes, 128)]
    wide = codes >= _WIDE
    if wide.any():
        kinds = np.where(codes >= _FIRST_IDEOGRAPH, _IDEOGRAPH, kinds)
        for first, stop in _PUNCTUATION:
            kinds[(codes >= first) & (codes < stop)] = _OTHER
    return kinds, wide


def _plausible(codes: npt.NDArray[np.uint32], kinds: Any, wide: Any) -> float:
    """Return the greatest plausible number of tokens of a text, which 19 of 20 texts of any tokenizer do not exceed."""
    is_letter = kinds == _LETTER
    words = int(is_letter[0]) + int((is_letter[1:] & ~is_letter[:-1]).sum())
    repeats = np.concatenate([[False], (codes[1:] == codes[:-1]) & ~wide[1:]])
    marks = (kinds == _OTHER) & (codes != ord(" ")) & ~repeats
    alphabet = max(words, int(is_letter.sum()) / 3) + int((kinds == _DIGIT).sum()) + int((marks & ~wide).sum())
    return max(1.0, alphabet + 1.5 * int((kinds == _IDEOGRAPH).sum()) + 3 * int((wide & (kinds != _IDEOGRAPH)).sum()))
