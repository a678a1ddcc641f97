"""Acceptance length of speculative decoding by class of turns, which a server's counters do not have.

An engine sends the tokens of one step in one event: of a turn's events after the first one, each is a step, so that the tokens of
an event are the accepted drafts and the token after them. This holds only if nothing joins or splits events. It is therefore
stated only if all turns together have the length that the server counted.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from inferload.base.numbers import number
from inferload.figures.servers.server_blocks import ACCEPTANCE_LENGTH
from inferload.results.documents.summary_document import Results
from inferload.turns.tally import Tally

MOST_OFF = 0.05  # of the server's own count


def with_acceptance(results: Results, by_class: Mapping[str, Tally], total: Tally) -> Results:
    """Return the results with the acceptance length of each of several classes, or a note on why it is not known."""
    counted = [ACCEPTANCE_LENGTH.of(entry, None) for entry in results.servers]
    known = [length for length in counted if length is not None]
    if len(by_class) < 2 or not known:
        return results
    of_client, of_server = _length(total), known[0]
    if len(known) > 1:
        why = "several servers count it"
    elif of_client is None:
        why = "the tokens of some events are not known"
    elif abs(of_client / of_server - 1) > MOST_OFF:
        why = f"events have {number(of_client)} tokens, and the server counted {number(of_server)}"
    else:
        found = {name: length for name, tally in by_class.items() if (length := _length(tally)) is not None}
        return replace(results, acceptance_by_class=found)
    note = (
        f"acceptance length by class: not known: {why}; run each class alone (--only) for the server's own count of it"
    )
    return replace(results, notes=[*results.notes, note])


def _length(tally: Tally) -> float | None:
    """Return the tokens of an event after the first one of a turn; None if a number of tokens is unknown."""
    steps = tally.window_events - tally.window_firsts
    if steps <= 0 or tally.window_events_uncounted:
        return None
    return (tally.window_output_tokens - tally.window_firsts) / steps
