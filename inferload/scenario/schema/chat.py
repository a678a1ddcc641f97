"""Schema of the workloads `chat` and `texts`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from inferload.scenario.schema.base import AtLeastOne, Flag, GrownPart, Pixels, ScenarioPart, Whole, one_of, optional
from inferload.scenario.schema.distributions import Constant, Count, Duration, NonNegative, greatest
from inferload.scenario.schema.sources import Source, Synthetic

ZERO = Constant(value=0.0)
ONE = Constant(value=1.0)


class Documents(ScenarioPart):
    """Documents that sessions share, added to each question: retrieval-augmented generation."""

    count: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = Field(description="number of documents")
    tokens: Count = Field(description="tokens of a document")
    per_turn: Annotated[int, Field(strict=True, ge=1, le=1000)] = optional(
        1, "different documents per turn, at most count"
    )
    zipf: NonNegative = optional(
        1.0, "exponent of Zipf's law: document n is drawn with weight 1 / n ** zipf; 0: uniform"
    )
    position: Literal["before", "after"] = optional(
        "before", "before or after the question; sessions share them in a prefix cache only before it"
    )

    @model_validator(mode="after")
    def _enough(self) -> "Documents":
        if self.per_turn > self.count:
            raise ValueError(f"per_turn {self.per_turn} is greater than count {self.count}; lower it")
        return self


class Images(ScenarioPart):
    """Images in each user message."""

    per_message: Annotated[int, Field(strict=True, ge=1, le=100)] = optional(1, "images per message")
    width_px: Pixels = optional(512, "width of a generated image, in pixels")
    height_px: Pixels = optional(512, "height of a generated image, in pixels")
    variants: AtLeastOne = optional(64, "number of different generated images; servers may cache repeated ones")
    url: str | None = optional(None, "URL of an image; null: generated PNG files", min_length=1)


class ContextLimit(ScenarioPart):
    """Limit of the context length, and the action at that limit."""

    limit_tokens: AtLeastOne = Field(
        description="most tokens of a request and its answer, without those of the chat template"
    )
    then: Literal["stop", "truncate", "compact"] = optional(
        "stop", "stop: end the session; truncate: drop the oldest turns; compact: replace the history by a summary"
    )
    summary_tokens: AtLeastOne = optional(500, "compact: tokens of the generated summary")


class Group(ScenarioPart):
    """Samples of one prompt that start together, as the rollouts of reinforcement learning. A session is one group."""

    samples: Annotated[int, Field(strict=True, ge=2, le=1000)] = Field(
        description="conversations of a group: equal prompts, each with its own request and answers"
    )
    seeds: Flag = optional(True, "send another seed for each sample, as key seed of the body; false: no seed")


class Chat(GrownPart):
    """Multi-turn conversations: each turn adds one user message and waits for the answer."""

    added_later: ClassVar[tuple[str, ...]] = ("group",)

    kind: Literal["chat"] = Field(description="chat: multi-turn conversations")
    source: Source = optional(Synthetic(kind="synthetic"), f"source of the text: {one_of(Source)}")
    turns: Count | None = optional(
        None, "turns of a session, at most the recorded ones; null: all recorded turns, 1 for generated text"
    )
    think_time_s: Duration = optional(ZERO, "pause before each turn but the first, in seconds")
    prompt_tokens: Count | None = optional(
        None, "tokens of the new user message of each turn; required for generated text"
    )
    output_tokens: Count | None = optional(
        None, "tokens of each answer, sent as max_tokens; null: the recorded length; required for generated text"
    )
    system_prompt_tokens: Whole = optional(0, "tokens of the system prompt; 0: none")
    system_prompt_shared_by: Literal["run", "session"] = optional(
        "run", "run: one system prompt for all sessions; session: one per session"
    )
    documents: Documents | None = optional(
        None, "documents added to each question: {count, tokens, per_turn, ...}; null: none"
    )
    images: Images | None = optional(
        None, "images in each message: {per_message, width_px, height_px, ...}; null: none"
    )
    history: Literal["live", "recorded", "server", "none"] = optional(
        "live",
        "earlier messages in a request: live: with the received answers; recorded: with the answers of the "
        "source, or generated ones, so that requests do not depend on the server; server: kept by the server, requests have only "
        "the new message and previous_response_id (endpoint responses); none: only the new message",
    )
    group: Group | None = optional(
        None,
        "each session is a group of samples that start together, {samples, seeds}; a user's next group starts when all "
        "have ended; null: single conversations",
    )
    context: ContextLimit | None = optional(
        None, "limit of the context length: {limit_tokens, then, ...}; null: no limit"
    )

    @model_validator(mode="after")
    def _lengths_said_once(self) -> "Chat":
        """Check that either the scenario or the source sets the lengths."""
        kind = self.source.kind
        if self.source.open_ended:
            missing = [name for name in ("prompt_tokens", "output_tokens") if getattr(self, name) is None]
            if missing:
                lines: Any = [{"type": "missing", "loc": (name,), "input": None} for name in missing]
                raise ValidationError.from_exception_data("Chat", lines)
            return self
        if self.prompt_tokens is not None:
            raise ValueError(f"prompt_tokens is set, but source {kind} has its own message lengths; remove it")
        if self.source.prompt_keys:
            for name in ("turns", "output_tokens"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is set, but source {kind} consists of single requests with their own lengths; remove it"
                    )
        return self

    @model_validator(mode="after")
    def _history_can_be_cut(self) -> "Chat":
        """Check that no history of the server is to be cut."""
        if self.history == "server" and self.context is not None and self.context.then == "truncate":
            raise ValueError("history: server cannot be cut by context.then truncate; use stop or compact")
        return self

    @model_validator(mode="after")
    def _first_message_fits(self) -> "Chat":
        """Check that each first message of generated text fits in the context: a session without one sends no turn."""
        if self.context is None or self.prompt_tokens is None or self.output_tokens is None:
            return self
        added = self.documents.per_turn * round(greatest(self.documents.tokens)) if self.documents else 0
        lengths = max(1, round(greatest(self.prompt_tokens))), max(1, round(greatest(self.output_tokens)))
        first = self.system_prompt_tokens + added + sum(lengths)
        if first > self.context.limit_tokens:
            raise ValueError(
                f"a first message and its answer can have {first:,} tokens, system prompt and documents included, more than "
                f"context.limit_tokens {self.context.limit_tokens:,}, and would not be sent; set a max for prompt_tokens and "
                "output_tokens, or raise the limit"
            )
        return self


class Texts(ScenarioPart):
    """Requests of texts: for embeddings and pooling, or documents with a query for rerank and score. A session is one request."""

    kind: Literal["texts"] = Field(description="texts: requests of embeddings, rerank, score or pooling")
    source: Source = optional(
        Synthetic(kind="synthetic"),
        f"source of the texts: {one_of(Source)}; of recorded conversations the first message of each",
    )
    texts_per_request: Count = optional(ONE, "texts, or documents, of a request, which is one batch")
    text_tokens: Count | None = optional(
        None, "tokens of each of them; null: those of the source; required for generated text"
    )
    query_tokens: Count | None = optional(None, "tokens of the query; null: none, but 32 for endpoint rerank and score")

    @model_validator(mode="after")
    def _lengths_said_once(self) -> "Texts":
        if self.source.open_ended and self.text_tokens is None:
            lines: Any = [{"type": "missing", "loc": ("text_tokens",), "input": None}]
            raise ValidationError.from_exception_data("Texts", lines)
        if not self.source.open_ended and self.text_tokens is not None:
            raise ValueError(f"text_tokens is set, but source {self.source.kind} has its own lengths; remove it")
        return self
