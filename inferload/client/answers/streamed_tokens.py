"""Number of tokens that an answer streamed, by its texts. No I/O.

A server's count can contain tokens that were never sent (hidden reasoning, the frame of a tool call, a stop string), and one event
can hold the text of many. Which text came with which event tells, whatever the tokenizer:

* A token begins where a run of letters or digits ends. These begins are a known part of the begins of all tokens, and events
  begin at a sample of all. Of a stream with one token in each event, events begin at all known ones; with drafts of n tokens, at
  one of n. If tokens were counted that are not in the texts, events begin at more of the known ones than the count explains (a
  hypergeometric distribution).
* A text has a greatest plausible number of tokens, and an absolute one: a token has a character, apart from parts of rare ones.
* An event with far more begins inside it than the others has held text. A begin inside an event is a token more than events.
* Tokens beyond one for each event are shared by the plausible numbers of tokens of the texts.

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
_LEAST_DRAFTS = 3  # events with several tokens that show drafts, of an answer alone
# Tokens / greatest plausible number: a log-normal distribution, and its floor.
_MOST, _SPREAD, _LEAST = log(0.75), 0.2, 0.01
_LONG = 3.1  # plausible tokens of few single ones
_UNSURE = 0.3  # error of an estimated number of tokens, as a share of those after the first
_LONGEST = 20.0  # tokens of a draft, as estimated

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
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
    """Tokens that were streamed; None: not known. `by_event`: of each event, by its text."""

    tokens: int | None
    by_event: array[int] | None = None
    remark: Remark | None = None


class _Look(NamedTuple):
    begins: int  # known begins of tokens, apart from that of the text
    met: int  # of these: begins of events
    inside: _Ints  # measure of the tokens of each event after its first
    sizes: _Floats  # plausible numbers of tokens of each event
    spaced: bool  # events end with a blank: they are words, whatever their tokens
    possible: int


def streamed_tokens(text: str, lengths: array[int], tokens: int, begins: list[int], counted: bool = False) -> Streamed:
    """Return the streamed tokens of a text. `lengths`: characters of each event; `tokens`: of the server; `counted`: by event.

    `begins`: known begins of tokens in earlier streams of the server, and how many of these were begins of events; this one's are
    added. Short answers tell too little by themselves.
    """
    events = len(lengths)
    with_text = np.frombuffer(lengths, dtype=np.int32).astype(np.int64)
    with_text = with_text[with_text > 0]
    if not len(with_text):
        return Streamed(tokens)
    look = _look(text, with_text)
    missed = 0 if look.spaced else max(0.0, _SINGLE * look.begins - look.met - 1)
    least = len(with_text) + missed
    if tokens <= (1 + TOLERANCE) * len(with_text):
        least = max(least, len(with_text) * (1 + missed / max(1, look.met)))
    if least > (1 + TOLERANCE) * tokens or (not counted and tokens < events):
        return Streamed(None, None, Remark.LOW_USAGE)
    if tokens - events <= TOLERANCE * (events - 1) or events < 2:
        return Streamed(tokens)
    doubt = _doubt(look, events, tokens)
    if counted:
        return Streamed(tokens if doubt is None else None, remark=doubt)
    if not look.spaced:
        begins[:] = begins[0] + look.begins - int(look.inside.max()), begins[1] + look.met  # one may be held
    knows_single = begins[0] >= _ENOUGH and begins[1] >= _SINGLE * begins[0]
    is_single = not look.spaced and look.met >= _SINGLE * look.begins and (doubt is not None or knows_single)
    explained = 1.5 * (look.begins - look.met) * tokens > (tokens - events) * look.begins
    is_shown = explained and (look.begins >= _ENOUGH or int((look.inside > 0).sum()) >= _LEAST_DRAFTS)
    if doubt is None and not is_shown and not _sends_drafts(begins):
        doubt = Remark.HIDDEN_TOKENS  # too short to tell them from drafts
    if doubt is not None:
        return Streamed(events if is_single else None, None, doubt)
    if len(with_text) < events:
        return Streamed(tokens)
    more = look.inside + _UNSURE * (look.sizes - 1).clip(min=0.01)
    is_held = _is_uneven(np.maximum(look.inside, (look.sizes / _LONG).astype(np.int64)))
    if is_held:
        more **= 2  # few events have nearly all of these tokens
    sizes = 1 + (tokens - events) * more / more.sum()
    longest = float(np.minimum(sizes, look.sizes * (tokens / look.sizes.sum())).max())
    is_held |= bool(longest > _LONGEST or _UNSURE * (sizes[0] - 1) > TOLERANCE * (tokens - sizes[0]))
    shares = np.diff(np.floor(np.cumsum(sizes) + 0.5), prepend=0).astype(np.int32)
    return Streamed(tokens, array("i", shares.tobytes()), Remark.HELD_TEXT if is_held else None)


def _sends_drafts(known: list[int]) -> bool:
    """Return True if earlier streams of the server had several tokens in an event."""
    return known[0] >= _ENOUGH and known[1] < _DRAFTED * known[0]


def _doubt(look: _Look, events: int, tokens: int) -> Remark | None:
    """Return why a count is not that of the texts; None if it can be."""
    plausible = max(1.0, float(look.sizes.sum()))
    likely = erfc((log(tokens / plausible) - _MOST) / _SPREAD / sqrt(2)) / 2
    far = tokens > look.possible or tokens > 1.5 * plausible
    if look.spaced:
        return Remark.HIDDEN_TOKENS if far and likely < _HIDDEN else None
    drawn = tokens - 1, events - 1, min(look.begins, tokens - 1)
    estimate = 1 + (events - 1) * look.begins / max(look.met, 0.5)
    evidence = _tail(*drawn, look.met, more=True) * max(_LEAST, likely)
    doubted = far or look.met >= _SINGLE * look.begins or tokens > _FAR * estimate
    if tokens > look.possible or (evidence < _HIDDEN and doubted):
        return Remark.HIDDEN_TOKENS
    if estimate > _FAR * tokens and look.met < look.begins and _tail(*drawn, look.met, more=False) < _LOW:
        return Remark.LOW_USAGE
    return None


def _is_uneven(inside: _Ints) -> bool:
    """Return True if one event has far more tokens than drafts of the mean of the others."""
    events, top = len(inside), int(inside.max())
    rest = int(inside.sum()) - top
    accepted = (rest + 1) / (rest + events)
    return bool(events * accepted**top < _HELD)


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
    met = int(begins[starts[1:]].sum())
    sizes = np.add.reduceat(_sizes(codes, kinds, wide), starts)
    return _Look(
        begins=met + int(inside.sum()),
        met=met,
        inside=inside,
        sizes=sizes,
        spaced=2 * int((codes[ends - 1] == ord(" ")).sum()) > len(lengths),
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


def _sizes(codes: npt.NDArray[np.uint32], kinds: Any, wide: Any) -> _Floats:
    """Return the plausible number of tokens of each character; a word has one, and more if it is long."""
    in_word = np.concatenate([[False], kinds[1:] == kinds[:-1]]) & (kinds == _LETTER)
    repeats = np.concatenate([[False], (codes[1:] == codes[:-1]) & ~wide[1:] & (kinds[1:] == _OTHER)])
    sizes: _Floats = np.select(
        [
            (codes == ord(" ")) | repeats,
            in_word & (codes < 128),
            in_word,
            kinds == _IDEOGRAPH,
            wide & (kinds == _OTHER),
        ],
        [0, 0.2, 0.6, 1.5, 2.0],
        1.0,
    )
    return sizes
