"""Source of generated English prose: questions and documents on everyday subjects, from sentence templates.

An intermediate form between random words, which are unlikely for any model, and a data set to download: sentences repeat
patterns and words as prose does, which matters to speculative decoding and tokenizers.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from inferload.scenario.schema.sources import Corpus
from inferload.workload.content.data import DataContext
from inferload.workload.content.messages import SHARED, Piece
from inferload.workload.content.token_estimate import SAMPLE_CHARS, SAMPLES, counting
from inferload.workload.sources.api import AnswerLengths, Source

# Phrases of each subject: actor, object, state, place or time.
_SUBJECTS: Mapping[str, tuple[str, str, str, str]] = {
    "gardening": (
        "the gardener|a careful neighbour|the allotment club|an experienced grower|our family",
        "the tomato beds|a row of beans|the compost heap|young apple trees|the raised bed|late potatoes|the greenhouse",
        "too dry|ready to harvest|full of weeds|slow to recover|healthier than last year|short of nitrogen",
        "behind the shed|in early spring|after three weeks of rain|on the south side|before the first frost",
    ),
    "software": (
        "the backend team|a new maintainer|the release manager|our on-call engineer|the reviewer",
        "the import job|a failing test|the login service|the billing report|an old migration|the cache layer|the parser",
        "slower than expected|hard to reproduce|safe to deploy|covered by tests|out of memory|waiting for review",
        "in the staging cluster|since the last release|under heavy load|on the second attempt|during the night build",
    ),
    "travel": (
        "the tour guide|a retired couple|the ferry company|our travel group|the station clerk",
        "the night train|a mountain hut|the harbour tour|the return ticket|a crowded market|the coastal path|the museum",
        "fully booked|cheaper in autumn|closed for repairs|worth the detour|easy to miss|delayed by an hour",
        "near the old bridge|at the end of September|two stops before the border|early in the morning|by the lake",
    ),
    "cooking": (
        "the head cook|my grandmother|the bakery|a hungry student|the recipe's author",
        "the onion soup|a loaf of rye bread|the lentil stew|a plain omelette|the pie crust|fresh noodles|the sauce",
        "slightly burnt|missing some acid|better the next day|ready to serve|too salty|golden at the edges",
        "over a low flame|after resting overnight|in a heavy pan|for about forty minutes|at the back of the oven",
    ),
    "history": (
        "the town council|a travelling merchant|the young queen|the shipwrights' guild|a local historian",
        "the harbour tax|the stone wall|a letter from the bishop|the spice trade|the census|the canal|an old treaty",
        "fiercely disputed|almost forgotten|worth a fortune|poorly recorded|rebuilt in brick|written in two hands",
        "in the year of the flood|along the northern road|after the harvest failed|under the new charter|within a decade",
    ),
    "science": (
        "the research group|a visiting chemist|the field station|the instrument maker|a doctoral student",
        "the water samples|a pair of sensors|the growth curve|the control group|an early estimate|the telescope|the alloy",
        "within the margin of error|hard to calibrate|consistent with the model|contaminated|lower than predicted",
        "at room temperature|over the whole season|in a second experiment|above the tree line|after careful averaging",
    ),
    "finance": (
        "the auditor|a small supplier|the savings bank|the budget committee|our accountant",
        "the quarterly forecast|an unpaid invoice|the loan agreement|the pension fund|the travel budget|a price index",
        "higher than last quarter|due at the end of the month|difficult to compare|fully covered|below the threshold",
        "in the second half of the year|before taxes|across all branches|under the old rules|once fees are included",
    ),
    "health": (
        "the family doctor|a physiotherapist|the night nurse|the sports club|a worried parent",
        "the knee injury|a mild fever|the new exercise plan|the blood test|a balanced breakfast|the waiting list|sleep",
        "improving steadily|no cause for alarm|often underestimated|worse in the evening|easy to keep up",
        "after a long shift|within six weeks|during the winter months|with regular breaks|for older patients",
    ),
}  # fmt: skip

_SENTENCES = (
    "{Who} found {what} {state} {where}.",
    "{Who} says that {what} was {state}, although nobody had expected it {where}.",
    "It is often forgotten that {what} can be {state} {where}, and {who} has seen it happen {number} times.",
    "When {who} looked at {what} again {where}, it turned out to be {state}.",
    "{What} and {what2} were compared {where}; the first was {state}, the second {state2}.",
    "As a rule of thumb, {who} checks {what} every {number} days, more often if it is {state}.",
    "There are {number} reasons for this, and the most important one is that {what} stays {state2}.",
    "{Where}, {who} decided to leave {what} alone until {what2} was no longer {state}.",
    "Without {what2}, {who} would have called {what} {state}.",
    "The notes mention {what} only once, {where}, and describe it as {state2}.",
)
_QUESTIONS = (
    "Could you explain why {what} is {state} {where}?",
    "What should {who} do if {what} is {state}?",
    "Please compare {what} with {what2} and say which of them matters more {where}.",
    "I am writing a short note about {what}. How would you describe it to somebody who has only seen {what2}?",
    "Is it true that {what} becomes {state} {where}, and what can {who} do about it?",
    "Summarise the following for {who}, in {number} points at most.",
    "Which steps would you take, one after the other, so that {what} is no longer {state}?",
)
_LEADS = ("Here is what I know so far.", "Some background:", "For context:", "These are the notes that I have.")
_NAMES = tuple(_SUBJECTS)
_WORDS = {
    name: tuple(tuple(choice.split("|")) for choice in parts) for name, parts in _SUBJECTS.items()
}  # (who, what, state, where) of each subject


def sentence(patterns: Sequence[str], subject: str, rng: Random) -> str:
    """Return one random sentence on a subject."""
    who, what, state, where = _WORDS[subject]
    chosen: dict[str, str] = {
        "who": rng.choice(who),
        "what": rng.choice(what),
        "what2": rng.choice(what),
        "state": rng.choice(state),
        "state2": rng.choice(state),
        "where": rng.choice(where),
        "number": str(rng.randint(2, 48)),
    }
    begins = {word.capitalize(): chosen[word][:1].upper() + chosen[word][1:] for word in ("who", "what", "where")}
    return rng.choice(patterns).format(**chosen, **begins)


def document(rng: Random, chars: int) -> str:
    """Return paragraphs on one subject, cut at the end of a word to `chars` characters."""
    return _filled([], rng.choice(_NAMES), rng, chars)


def message(rng: Random, subject: str, chars: int) -> str:
    """Return a question on a subject, followed by background sentences up to the length."""
    begin = [sentence(_QUESTIONS, subject, rng)]
    if chars > len(begin[0]) + 40:
        begin.append(rng.choice(_LEADS))
    return _filled(begin, subject, rng, chars)


def _filled(begin: list[str], subject: str, rng: Random, chars: int) -> str:
    parts, length = begin, sum(len(part) + 1 for part in begin)
    while length < chars:
        parts.append(sentence(_SENTENCES, subject, rng) + ("\n" if rng.random() < 0.2 else ""))
        length += len(parts[-1]) + 1
    text = " ".join(parts).replace("\n ", "\n\n")
    end = text.rfind(" ", 0, chars + 1) if len(text) > chars else len(text)
    return text[: end if end > 0 else chars].rstrip()


class CorpusSource(Source):
    """Source of generated prose; texts have about the requested number of tokens."""

    digest: str | None = None
    draws = False

    def __init__(self, source: Corpus, class_name: str, data: DataContext, _answers: AnswerLengths) -> None:
        self._seed = data.seed
        self._counting = counting(source.chars_per_token, data.of(class_name))
        self._shared = lru_cache(maxsize=1024)(self._written)
        self._subject = lru_cache(maxsize=4096)(lambda session: Random(f"{self._seed}/{session}").choice(_NAMES))

    def text(self, key: str, tokens: int) -> Piece:
        """Return the text of a key; all turns of a session have one subject."""
        return (self._shared if key.startswith(SHARED) else self._written)(key, tokens)

    def _written(self, key: str, tokens: int) -> Piece:
        rng = Random(f"{self._seed}/{key}")
        chars = max(1, round(tokens * self._counting.chars_per_token))
        shared, session = key.startswith(SHARED), key.rpartition("/")[0]
        text = document(rng, chars) if shared else message(rng, self._subject(session), chars)
        return Piece(key, self._counting.tokens(len(text)), text)

    def sample(self) -> Sequence[str]:
        """Return sample messages; empty if the scenario sets the characters per token."""
        if self._counting.how == "given":
            return ()
        rng = Random("sample")
        return [message(rng, rng.choice(_NAMES), rng.randint(80, SAMPLE_CHARS)) for _ in range(SAMPLES)]

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        return {"kind": "corpus", "tokens": self._counting.facts()}

    def in_words(self) -> list[str]:
        """Return the lines of the plan."""
        return ["generated English prose", f"token counts {self._counting.in_words()}"]
