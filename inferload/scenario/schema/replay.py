"""Schema of the workload `replay`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from inferload.base.numbers import exact
from inferload.scenario.schema.base import AtLeastOne, Part, Pixels, ScenarioPart, Whole, optional
from inferload.scenario.schema.distributions import NonNegative, Positive

FormatName = Literal[
    "mooncake",
    "bailian",
    "azure-2023",
    "azure-2024",
    "azure-2025",
    "burstgpt-1",
    "burstgpt-2",
    "weka",
    "tracelab",
    "otel",
    "jsonl",
    "csv",
]
# Formats with end times of answers or pauses. Format csv has them if its columns name one.
ENDS_KNOWN = ("mooncake", "burstgpt-2", "weka", "tracelab", "otel", "jsonl")
UNTIMED = ("weka",)  # formats without start times of sessions


class TraceWindow(ScenarioPart):
    """Time window of a trace, in seconds since its first request."""

    from_s: NonNegative = optional(0.0, "start of the window (included), in seconds of the trace")
    to_s: Positive | None = optional(None, "end of the window (excluded); null: end of the trace")

    @model_validator(mode="after")
    def _forward(self) -> "TraceWindow":
        if self.to_s is not None and self.to_s <= self.from_s:
            raise ValueError(f"to_s {exact(self.to_s)} is not after from_s {exact(self.from_s)}; raise to_s")
        return self

    def holds(self, at_s: float) -> bool:
        """Return whether a session with this start time is in the window."""
        return self.from_s <= at_s and (self.to_s is None or at_s < self.to_s)


class ReplayStart(ScenarioPart):
    """Start of the first session of each user within its trace."""

    from_share: Part = optional(0.0, "earliest point, as a share of the session's recorded time")
    to_share: Part = optional(1.0, "latest point; it is drawn from the seed and the session")
    warmup_turns: Whole = optional(
        0,
        "turns of each user after that point that are sent in the warm-up, without pauses; the later ones keep "
        "their times",
    )

    @model_validator(mode="after")
    def _forward(self) -> "ReplayStart":
        if self.to_share < self.from_share:
            raise ValueError(
                f"to_share {exact(self.to_share)} is below from_share {exact(self.from_share)}; raise to_share"
            )
        return self


ColumnName = Annotated[str, Field(min_length=1)]


class TraceColumns(ScenarioPart):
    """Column names of a trace in format csv."""

    at: ColumnName = optional(
        "at_s", "start of the request: a number in time_unit, or a date and time (UTC without an offset)"
    )
    input_tokens: ColumnName = optional("input_tokens", "tokens of the prompt")
    output_tokens: ColumnName = optional("output_tokens", "tokens of the answer")
    session: ColumnName | None = optional(
        None, "requests with the same value are one session; null: each request is a session"
    )
    ends: ColumnName | None = optional(None, "end of the answer, as the start; null: not recorded")
    time_unit: Literal["s", "ms", "us", "ns"] = optional("s", "unit of times that are numbers")


class Replay(ScenarioPart):
    """Replay of a recorded trace: its lengths, shared prefixes and times, with generated text."""

    kind: Literal["replay"] = Field(description="replay: sessions of a recorded trace")
    path: Annotated[str, Field(min_length=1)] = Field(
        description="trace file, or folder of such files, plain or .gz; relative to the current directory, else to the "
        "scenario's folder"
    )
    format: FormatName = Field(description="format of the trace")
    columns: TraceColumns = optional(TraceColumns(), "format csv: names of the columns")
    window: TraceWindow = optional(TraceWindow(), "sessions by start time: {from_s, to_s}; default: all")
    join_turns: bool = optional(
        True, "turns of a recorded session are a session, one after the other; false: each turn is a session of its own"
    )
    speed: Positive = optional(
        1.0, "factor on the recorded speed of the turns of a session; session starts follow arrivals.speed"
    )
    pacing: Literal["recorded", "pauses", "none"] = optional(
        "recorded",
        "start of later turns: recorded: at the recorded time, but not before the previous answer has ended; "
        "pauses: the recorded pause after the previous answer; none: immediately after it",
    )
    max_pause_s: Positive | None = optional(
        None, "pacing pauses: longest pause; longer ones are shortened and counted; null: no limit"
    )
    max_idle_s: Positive | None = optional(
        None,
        "longest time of a session in which no answer is awaited, in seconds of the trace; longer ones are "
        "shortened for all agents of the session and counted; null: no limit",
    )
    max_system_idle_s: Positive | None = optional(
        None,
        "longest time of the measure phase in which no turn of the run is in flight; the pauses of all users are "
        "then shortened by the same time, which is counted; null: no limit",
    )
    start: ReplayStart | None = optional(
        None,
        "format weka: the first session of each user begins within its trace: {from_share, to_share, "
        "warmup_turns}. In the warm-up, the last turn before that point of each agent that goes on is sent, with an "
        "answer of one token; null: all sessions begin with their first turn",
    )
    max_context_tokens: AtLeastOne | None = optional(
        None,
        "most tokens of a prompt and its answer; the first longer turn ends its session, which is counted; "
        "null: no limit",
    )
    image_px: Pixels = optional(
        512, "width and height of the generated images of requests that the trace records with images"
    )

    @model_validator(mode="after")
    def _used_keys_only(self) -> "Replay":
        """Refuse a key that the format or the pacing has no use for."""
        own = f"format {self.format}"
        if self.format in UNTIMED and self.window != TraceWindow():
            raise ValueError(f"window: {own} has no start times of sessions; remove window")
        if self.format != "csv" and self.columns != TraceColumns():
            raise ValueError(f"columns: {own} has its own names; use format csv, or remove columns")
        if self.format in UNTIMED and not self.join_turns:
            raise ValueError(f"join_turns: {own} has times within a session only; remove join_turns")
        if self.start is not None and self.format != "weka":
            raise ValueError(f"start: {own} has no whole prompts of one session; use weka, or remove start")
        if self.pacing == "none" and self.max_idle_s is not None:
            raise ValueError("max_idle_s: pacing none has no idle gaps; use recorded or pauses, or remove max_idle_s")
        if self.pacing == "pauses" and not (self.format in ENDS_KNOWN or self.columns.ends is not None):
            raise ValueError(f"pacing pauses: {own} has no end times of answers; use recorded or none")
        return self
