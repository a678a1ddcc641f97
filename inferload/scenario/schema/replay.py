"""A replay as a scenario file says it."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from inferload.scenario.schema.base import Part
from inferload.scenario.schema.distributions import NonNegative, Positive

FormatName = Literal[
    "mooncake", "bailian", "azure-2023", "azure-2024", "burstgpt-1", "burstgpt-2", "weka", "tracelab", "otel", "jsonl"
]
# Which forms say when an answer was complete, so that a pause is known.
ENDS_KNOWN = ("burstgpt-2", "weka", "tracelab", "otel", "jsonl")
UNTIMED = ("weka",)  # does not say when sessions begin


class TraceWindow(Part):
    """The part of a trace that is replayed."""

    from_s: NonNegative = Field(default=0.0, description="first second that is replayed, since the trace's first time")
    to_s: Positive | None = Field(default=None, description="first second that is not; null: to the trace's end")

    @model_validator(mode="after")
    def _forward(self) -> "TraceWindow":
        if self.to_s is not None and self.to_s <= self.from_s:
            raise ValueError(f"to_s {self.to_s:g} is not after from_s {self.from_s:g}")
        return self


class Replay(Part):
    """Sessions as a trace has recorded them: lengths, shared beginnings, times."""

    kind: Literal["replay"] = Field(description="replay: sessions of a recorded trace")
    path: Annotated[str, Field(min_length=1)] = Field(description="the trace's file")
    format: FormatName = Field(description="the trace's form, with its release where releases differ")
    window: TraceWindow = Field(default=TraceWindow(), description="which part of it: {from_s, to_s}")
    speed: Positive = Field(
        default=1.0,
        description="how much faster than recorded a session's later turns follow; arrivals have a speed of theirs",
    )
    pacing: Literal["recorded", "pauses", "none"] = Field(
        default="recorded",
        description="later turns of a session: recorded: at their time, or when the answer before is in, if that is later; "
        "pauses: so long after the answer before as recorded; none: at once",
    )
    max_pause_s: Positive | None = Field(
        default=None,
        description="with pacing pauses, no pause is longer, and those that are cut are counted; null: as recorded",
    )
    max_context_tokens: Annotated[int, Field(strict=True, ge=1)] | None = Field(
        default=None,
        description="turns whose prompt and answer are longer are left out, with what follows, and counted",
    )

    @model_validator(mode="after")
    def _window_has_times(self) -> "Replay":
        if self.format in UNTIMED and self.window != TraceWindow():
            raise ValueError(f"window: format {self.format} does not say when sessions begin; remove it")
        return self

    @model_validator(mode="after")
    def _pauses_are_known(self) -> "Replay":
        if self.pacing == "pauses" and self.format not in ENDS_KNOWN:
            raise ValueError(
                f"pacing pauses: format {self.format} does not say when answers ended; use recorded or none"
            )
        return self
