"""The kind `chat` as a scenario file says it."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from inferload.scenario.schema.base import AtLeastOne, Part, Whole
from inferload.scenario.schema.distributions import Constant, Count, Duration, NonNegative
from inferload.scenario.schema.sources import Source, Synthetic

ZERO = Constant(value=0.0)
ONE = Constant(value=1.0)

Pixels = Annotated[int, Field(strict=True, ge=1, le=8192)]


class Documents(Part):
    """Documents that many sessions look into, put beside the question: retrieval-augmented generation."""

    count: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = Field(description="documents there are")
    tokens: Count = Field(description="tokens of a document: a number or {dist: ...}")
    per_turn: Annotated[int, Field(strict=True, ge=1, le=1000)] = Field(
        default=1, description="different documents in each turn"
    )
    zipf: NonNegative = Field(
        default=1.0, description="how unequally they are used: the n-th most used as 1 / n ** zipf; 0: all alike"
    )
    position: Literal["before", "after"] = Field(
        default="before", description="before or after the question; only what stands in front can be a cached prefix"
    )

    @model_validator(mode="after")
    def _enough(self) -> "Documents":
        if self.per_turn > self.count:
            raise ValueError(f"per_turn {self.per_turn} is more than the {self.count} documents there are")
        return self


class Images(Part):
    """Pictures in each of the user's messages."""

    per_message: Annotated[int, Field(strict=True, ge=1, le=100)] = Field(
        default=1, description="pictures in a message"
    )
    width_px: Pixels = Field(default=512, description="width of a picture that is made up")
    height_px: Pixels = Field(default=512, description="height of a picture that is made up")
    variants: AtLeastOne = Field(
        default=64, description="how many different pictures are made up; a server may keep what it has seen"
    )
    url: str | None = Field(
        default=None, min_length=1, description="address of a picture instead; null: made up, as PNG"
    )


class ContextLimit(Part):
    """How long a conversation may grow, and what happens then."""

    limit_tokens: AtLeastOne = Field(
        description="most tokens of a request and its answer, without what the chat template adds"
    )
    then: Literal["stop", "truncate", "compact"] = Field(
        default="stop",
        description="stop: the session ends; truncate: its oldest turns are left out; compact: a summary replaces all "
        "that was said",
    )
    summary_tokens: AtLeastOne = Field(default=500, description="tokens of such a summary, made up")


# Sources whose text is as long as the scenario says, and those that are single requests with lengths of their own.
OPEN_ENDED = ("synthetic", "corpus")
SINGLE = ("random", "prefix_repetition")


class Chat(Part):
    """Conversations of people: each turn adds one message and waits for the answer."""

    kind: Literal["chat"] = Field(description="chat")
    source: Source = Field(
        default=Synthetic(kind="synthetic"),
        description="where the text comes from: {kind: synthetic | corpus | random | prefix_repetition | sharegpt | jsonl "
        "| csv | huggingface, ...}",
    )
    turns: Count | None = Field(
        default=None,
        description="turns of a session, at most as many as were recorded: a number or {dist: ...}; null: all that were "
        "recorded, of a made-up session one",
    )
    think_time_s: Duration = Field(
        default=ZERO, description="pause before each later turn, in seconds: a number or {dist: ...}"
    )
    prompt_tokens: Count | None = Field(
        default=None, description="tokens of each turn's own new message: a number or {dist: ...}"
    )
    output_tokens: Count | None = Field(
        default=None,
        description="tokens of each answer, as max_tokens: a number or {dist: ...}; null: as long as the recorded one",
    )
    system_prompt_tokens: Whole = Field(default=0, description="tokens of a system prompt; 0: none")
    system_prompt_shared_by: Literal["run", "session"] = Field(
        default="run", description="run: all sessions have the same system prompt; session: each has its own"
    )
    documents: Documents | None = Field(
        default=None, description="documents put beside each question: {count, tokens, per_turn, zipf}; null: none"
    )
    images: Images | None = Field(
        default=None, description="pictures in each message: {per_message, width_px, height_px}; null: none"
    )
    history: Literal["live", "recorded", "none"] = Field(
        default="live",
        description="live: a turn carries all earlier messages and the answers that came; recorded: with the source's own "
        "answers, made up where it has none, so that two runs ask the same; none: only its own message",
    )
    context: ContextLimit | None = Field(
        default=None, description="how long a conversation may grow: {limit_tokens, then}; null: as it grows"
    )

    @model_validator(mode="after")
    def _lengths_said_once(self) -> "Chat":
        """Lengths come from the scenario or from the source, not from neither and not from both."""
        kind = self.source.kind
        if kind in OPEN_ENDED:
            missing = [name for name in ("prompt_tokens", "output_tokens") if getattr(self, name) is None]
            if missing:
                lines: Any = [{"type": "missing", "loc": (name,), "input": None} for name in missing]
                raise ValidationError.from_exception_data("Chat", lines)
            return self
        if self.prompt_tokens is not None:
            raise ValueError(f"prompt_tokens does not go with source {kind}, whose messages have their own lengths")
        if kind in SINGLE:
            for name in ("turns", "output_tokens"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} does not go with source {kind}, which is of single requests; see its keys"
                    )
        return self
