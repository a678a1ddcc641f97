"""What the cached tokens of answers include: found by the server's counts of hits in its memory and of loaded tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.results.documents.figures_document import Cache, CountedHits
from inferload.results.summarise.cache_figures import _per_turn_block
from inferload.workload.prefix_cache.expected import Hits
from inferload.workload.prefix_cache.sent import ReportedHits, SentSums

numbers = st.tuples(st.integers(100, 10**9), st.integers(100, 10**9), st.floats(0, 0.05))


@given(numbers=numbers)
@pytest.mark.parametrize(
    ("of", "looked_up", "includes", "note"),
    [
        ((1, 1), 1, "all tiers", "that were loaded from other tiers"),  # ExampleConnector of vLLM
        ((1, 0), 1, "device hits", "without"),
        ((1, 0.5), 1, "neither", "prefill server"),
        ((1, 1), 2, None, ""),  # the prompts of a prefill and a decode server, or of other clients
        ((0.8, 0), 1.005, None, ""),  # prompts before the load, whose hits may be as many as those that were loaded
    ],
)
def test_reported_tokens_are_named_by_the_counts(
    of: tuple[int, float], looked_up: float, includes: str | None, note: str, numbers: tuple[int, int, float]
) -> None:
    hits, loaded, lost = numbers
    loaded = loaded if looked_up in (1, 2) else -(-hits // 200)
    reported, tokens = round(of[0] * hits + (of[1] - lost) * loaded), 2 * (hits + loaded)
    sums = SentSums(reported=ReportedHits(Hits(turns=10, input=tokens, cacheable=tokens), reported))
    counted = CountedHits(queries=round(looked_up * tokens), hits=hits, hit_rate=0.25, loaded=loaded)
    per_turn = _per_turn_block(sums, counted)
    assert per_turn is not None
    assert per_turn.includes == includes
    cache = Cache(counted=counted, per_turn=per_turn)
    assert [note in text for text in cache.notes] == ([True] if note else [])
    assert [row[2] for row in cache.known] == [hits, hits + loaded, reported]
