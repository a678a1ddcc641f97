"""Judgement of canary answers against those that the server gave without load. No I/O.

All rules are relative to the references: a model that repeats itself, or writes broken text, does so without load, too.
"""

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache

import msgspec
from msgspec import Struct, field

from inferload.base.numbers import percent
from inferload.results.documents.summary_document import Canary, CanaryExample
from inferload.turns.record import Failure
from inferload.turns.tally import WRONG, TallySet, add_counts

_LEAST = 12  # characters of an answer that identifies its prompt
_NEAR, _FAR = 0.9, 0.5  # similarity to the answer to another prompt, at least, and to the own one, at most
_REPEATS, _LONGEST = 4, 100  # least repetitions of a period, and its greatest length in characters
_EXAMPLES, _EXAMPLE_CHARS = 3, 200  # of each class
_OF_FAILURE: Mapping[str, str] = {
    Failure.UNFINISHED: "unfinished", Failure.EMPTY: "empty", Failure.CUT: "cut", Failure.BAD_EVENT: "broken"
}  # fmt: skip


class Answer(Struct, frozen=True):
    """An answer to prompt `prompt` of `target`. `whole`: it has as many tokens as its limit, or their number is not known."""

    prompt: int
    target: str
    model: str
    text: str
    finish_reason: str | None = None
    failure: str | None = None
    whole: bool = True


class Reference(Struct, frozen=True):
    """Answers without load: one, or two if the server gave another one when it was asked again."""

    prompt: int
    target: str
    model: str
    texts: tuple[str, ...]
    finish_reason: str | None = None


class References(Struct, frozen=True):
    """All prompts with their references, as in canary.json."""

    prompts: tuple[str, ...]
    references: tuple[Reference, ...]

    @property
    def sha256(self) -> str:
        """Digest of prompts and answers, without servers and models: any number of equal servers have equal digests."""
        known = {(self.prompts[each.prompt], *sorted(each.texts)) for each in self.references}
        return hashlib.sha256(msgspec.json.encode(sorted(known))).hexdigest()


def judge(answer: Answer, own: Reference, others: Sequence[Reference]) -> str:
    """Return the class of an answer: ok, changed, unstable, empty, cut, swapped, broken, unanswered or unfinished.

    `others`: references of other prompts. `unstable`: another answer to a prompt whose answers without load differ, too.
    """
    if answer.failure is not None:
        return _OF_FAILURE.get(answer.failure, "unanswered")
    if answer.text in own.texts:
        return "ok"
    text, every = _without_end(answer.text), [text for each in (own, *others) for text in each.texts]
    if not text.strip() and all(_without_end(reference).strip() for reference in own.texts):
        return "empty"
    if _is_invalid(text) and not any(map(_is_invalid, map(_without_end, every))):
        return "broken"
    if answer.finish_reason != "stop" and _is_endless(text, max(_runs(each)[0] for each in every)):
        return "broken"
    if any(_is_answer_to(text, own, other) for each in others for other in each.texts):
        return "swapped"
    ended = answer.finish_reason == "stop" or (answer.finish_reason is not None and answer.whole)
    if not ended and any(reference.startswith(text) for reference in own.texts) and own.finish_reason is not None:
        return "cut"
    return "changed" if len(own.texts) == 1 else "unstable"


def _without_end(text: str) -> str:
    """Return a text without a few replacement characters at its end: a limit of tokens may cut a character."""
    return re.sub("\ufffd{1,3}$", "", text)


def _is_invalid(text: str) -> bool:
    return any(
        char == "\ufffd" or (char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cs")) for char in text
    )


@lru_cache(1024)  # of references
def _runs(text: str) -> tuple[int, int]:
    """Return the lengths of the longest part of a text that repeats a period, and of the longest such part at its end; 0: none."""
    longest, last = [0], [0]
    for period in range(1, min(_LONGEST, len(text) // _REPEATS) + 1):
        length = 0
        for at in range(period, len(text)):
            length = length + 1 if text[at] == text[at - period] else 0
            if length >= (_REPEATS - 1) * period:
                longest.append(length + period)
        last.append(length + period if length >= (_REPEATS - 1) * period else 0)
    return max(longest), max(last)


def _is_endless(text: str, of_references: int) -> bool:
    """Return True if most of a text repeats a period to its end, and far longer than any reference does.

    A change of one character at most joins two repetitions of a reference.
    """
    return _runs(text)[1] >= max(_LEAST, len(text) / 2, 3 * of_references + _REPEATS + 1)


def _is_answer_to(text: str, own: Reference, other: str) -> bool:
    """Return True if a text is another prompt's answer, which must be long and tell itself apart from the own one."""
    if min(len(text), len(other)) < _LEAST or 2 * _runs(other)[0] > len(other):
        return False
    return _similar(text, other, _NEAR) and not any(
        _similar(text, reference, _FAR) or _similar(other, reference, _FAR) for reference in own.texts
    )


def _similar(text: str, other: str, least: float) -> bool:
    matcher = SequenceMatcher(None, text, other, autojunk=False)
    return matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least and matcher.ratio() >= least


class JudgedAnswers(Struct):
    """Judged answers of a run. `changed`: references that answers under load differ from."""

    references: References
    asked: dict[str, int] = field(default_factory=dict)  # by target
    examples: dict[str, list[CanaryExample]] = field(default_factory=dict)  # by class
    changed: set[Reference] = field(default_factory=set)
    again: dict[str, int] = field(default_factory=dict)  # classes of the answers without load, after the run

    def judged(self, answer: Answer) -> str:
        """Return the class of an answer, and keep it as an example if it is not the reference."""
        of_server = [
            each for each in self.references.references if (each.target, each.model) == (answer.target, answer.model)
        ]
        own = next(each for each in of_server if each.prompt == answer.prompt)
        name = judge(answer, own, [each for each in of_server if each is not own])
        add_counts(self.asked, {answer.target: 1})
        if name == "changed":
            self.changed.add(own)
        kept = self.examples.setdefault(name, [])
        if name not in ("ok", "unfinished") and len(kept) < _EXAMPLES:
            shown = (self.references.prompts[own.prompt], answer.text, own.texts[0])
            prompt, text, reference = (each[:_EXAMPLE_CHARS] for each in shown)
            end = answer.failure or answer.finish_reason
            kept.append(CanaryExample(target=answer.target, prompt=prompt, answer=text, reference=reference, end=end))
        return name

    def add_later(self, answer: Answer) -> None:
        """Count an answer without load to a prompt whose answer had changed."""
        add_counts(self.again, {self.judged(answer): 1})

    def document(self, tallies: TallySet) -> Canary:
        """Return the block of the summary. `tallies`: of the run."""
        total = tallies.total()
        return Canary(
            asked=sum(total.by_canary.values()),
            wrong=total.wrong_canaries + sum(self.again.get(name, 0) for name in WRONG),
            by_class=dict(sorted(total.by_canary.items())),
            again=dict(sorted(self.again.items())),
            by_target=dict(self.asked),
            unstable_prompts=sum(len(each.texts) > 1 for each in self.references.references),
            examples={name: kept for name, kept in sorted(self.examples.items()) if kept},
            references_sha256=self.references.sha256,
        )


def note(canary: Canary) -> str:
    """Return the remark on answers that changed under load, or were not judged; empty without one."""
    if not canary.asked:
        return "no canary was sent, so that nothing is known of the answers: raise canary.share or the number of turns"
    counts: Mapping[str, int] = canary.by_class
    parts = []
    if changed := counts.get("changed", 0):
        same, asked = canary.again.get("ok", 0), sum(canary.again.values())
        later = f"; of {asked} of their prompts asked again without load, {same} had the first answer" if asked else ""
        share = percent(changed / canary.asked)
        parts.append(f"{changed} ({share}) changed, as batches change answers even at temperature 0{later}")
    if canary.unstable_prompts:
        parts.append(f"{canary.unstable_prompts} prompts had two answers without load, so that no change is known")
    if missing := counts.get("unanswered", 0) + counts.get("unfinished", 0):
        parts.append(f"{missing} had no answer")
    return f"of {canary.asked} canary answers: {'; '.join(parts)}" if parts else ""
