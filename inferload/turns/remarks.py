"""Peculiarities of answers that were measured although they do not follow the API, or lack something."""

from enum import StrEnum


class Remark(StrEnum):
    """Kinds of peculiarities: a turn has each at most once. `MEANINGS` has their texts."""

    ODD_EVENT = "odd_event"
    NO_FINISH_REASON = "no_finish_reason"
    ZERO_USAGE = "zero_usage"
    PIECE_USAGE = "piece_usage"
    LOW_USAGE = "low_usage"
    HIDDEN_TOKENS = "hidden_tokens"
    HELD_TEXT = "held_text"
    STOP_STRING = "stop_string"
    REPEATED_TEXT = "repeated_text"
    INLINE_THOUGHTS = "inline_thoughts"
    CONTENT_TYPE = "content_type"
    CONTENT_ENCODING = "content_encoding"
    OPEN_BODY = "open_body"


# What the turns have, and what that means for the figures; printed after "12 of 40 turns".
MEANINGS = {
    Remark.ODD_EVENT: "have events that differ from the API; what could be read of them was used",
    Remark.NO_FINISH_REASON: "ended with the end marker but without a finish reason, so that an interrupted answer looks complete",
    Remark.ZERO_USAGE: "have text, but a usage of 0 tokens; their number of tokens is unknown",
    Remark.PIECE_USAGE: "have a usage beside the text that is neither a running count nor a total; their output tokens are unknown",
    Remark.LOW_USAGE: "have a usage below the tokens of their text, at least one for each event (reasoning left out?), which token "
    "rates use; they have no TPOT and no ITL by token",
    Remark.HIDDEN_TOKENS: "have output tokens that were not streamed (hidden reasoning, parsers, stop strings), which token rates "
    "use; their TPOT and ITL by token are those of the streamed tokens, or unknown",
    Remark.HELD_TEXT: "have events with many tokens beside others with few (held text?), which count by the length of their texts "
    "in TPOT and ITL by token, or these are unknown",
    Remark.STOP_STRING: "have text that was held back because it could begin a stop string: their TTFT and gaps are those of "
    "the text, later than the tokens; their TPOT and ITL by token are right with continuous_usage, else unknown",
    Remark.REPEATED_TEXT: "repeat the whole answer in their last event, which was left out",
    Remark.INLINE_THOUGHTS: "have their thoughts in the content (no reasoning parser); TTFO is that of the text behind them",
    Remark.CONTENT_TYPE: "are event streams with another content type than text/event-stream",
    Remark.CONTENT_ENCODING: "were compressed although this was not asked for; compression delays events",
    Remark.OPEN_BODY: "have a body that went on after the end marker; its connection was closed",
}
# With these, TPOT is not by the server's count, or unknown.
OF_TOKENS = (Remark.LOW_USAGE, Remark.HIDDEN_TOKENS, Remark.HELD_TEXT, Remark.STOP_STRING)
