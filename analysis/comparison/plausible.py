"""Whether a result can be true at all: Little's law and the sums of its tokens. Pure maths on figures."""

from collections.abc import Mapping

_TOLERANCE = 0.10


def faults(
    figures: Mapping[str, float | None],
    concurrency: float | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
) -> list[str]:
    """What cannot be, a sentence each; empty where nothing speaks against the result.

    Little's law: requests in flight = requests/s x mean time in the system, and a limit on concurrency bounds the left side.
    """
    found = []
    rate, e2e_ms = figures.get("turns_per_s"), figures.get("mean(e2e_ms)") or figures.get("p50(e2e_ms)")
    if rate and e2e_ms and concurrency:
        most = concurrency / (e2e_ms / 1000)
        if rate > most * (1 + _TOLERANCE):
            found.append(
                f"Little's law: {concurrency:g} requests at once of {e2e_ms / 1000:.3g} s each are at most "
                f"{most:.3g} req/s, but {rate:.3g} req/s are reported"
            )
    output = figures.get("output_tok_per_s")
    if rate and output and output_tokens:
        _compare(found, "output", rate * output_tokens, output)
    total = figures.get("total_tok_per_s")
    if rate and total and input_tokens is not None and output_tokens:
        _compare(found, "total", rate * (input_tokens + output_tokens), total)
    mean, median, p99 = (figures.get(f"{q}(ttft_ms)") for q in ("mean", "p50", "p99"))
    if median is not None and p99 is not None and median > p99:
        found.append(f"TTFT: a median of {median:.4g} ms cannot lie above a p99 of {p99:.4g} ms")
    if mean is not None and e2e_ms is not None and mean > e2e_ms * (1 + _TOLERANCE):
        found.append(f"a mean TTFT of {mean:.4g} ms cannot be longer than the whole answer's {e2e_ms:.4g} ms")
    return found


def _compare(found: list[str], what: str, counted: float, reported: float) -> None:
    if abs(reported / counted - 1) > _TOLERANCE:
        found.append(
            f"{what} tokens: {counted:.4g} tok/s by turns/s and tokens per turn, but {reported:.4g} tok/s are reported"
        )
