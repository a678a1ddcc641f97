"""The fast parser of metrics pages against the reference parsers."""

import gzip
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from inferload.servers import exposition
from inferload.servers.exposition import PromParser, Sample, page_text
from inferload.servers.text_format import pairs

AWKWARD = """\
# HELP vllm:x An explanation with a } and "quotes".
# TYPE vllm:x gauge
vllm:x 1
vllm:x{} 2.5e-3
vllm:x{engine="0",model_name="a b"} +Inf
vllm:x{ model_name = "c" , engine = "1" , } 7 1700000000000
  vllm:x{m="}"}   -Inf

vllm:x{m="a\\\\b\\"c\\nd",n="{,=}"} NaN
vllm:x{m="ünï"} 0
{"own.name","label.name"="}"} 3
"""


def reference(page: str, families: Callable[[str], Any] = text_string_to_metric_families) -> list[Sample]:
    return [
        Sample(
            sample.name,
            tuple(sorted(sample.labels.items())),
            sample.value,
            sample.timestamp and round(sample.timestamp * 1e9),
        )
        for family in families(page)
        for sample in family.samples
    ]


def comparable(samples: list[Sample]) -> list[str]:
    """Return the samples sorted, as the order within a page is not compared, and with NaN equal to NaN."""
    return sorted(
        repr(sample._replace(value=float(sample.value), at_ns=sample.at_ns and round(sample.at_ns, -3)))
        for sample in samples
    )


def test_pages_are_read_as_by_the_reference_parser() -> None:
    assert comparable(PromParser().parse(AWKWARD)) == comparable(reference(AWKWARD))


_label = st.text(
    st.characters(exclude_categories=("Cs", "Zl", "Zp", "Cc"), include_characters='\n\\"}{,= '), max_size=12
)


@given(
    st.lists(st.tuples(_label, _label, st.floats(allow_nan=True)), max_size=8), st.lists(st.floats(0, 1000), max_size=5)
)
def test_pages_of_the_client_library_are_read(rows: list[tuple[str, str, float]], seen: list[float]) -> None:
    registry = CollectorRegistry()
    Info("vllm:build", "An info", registry=registry).info({"version": "1 # {}"})
    gauge = Gauge("vllm:some_gauge", "A gauge", ["one", "two"], registry=registry)
    counter = Counter("vllm:some_counter", "A counter", ["one"], registry=registry)
    histogram = Histogram("vllm:some_seconds", "A histogram", registry=registry)
    for one, two, value in rows:
        gauge.labels(one, two).set(value)
        counter.labels(one).inc()
    for value in seen:
        histogram.observe(value, {"trace_id": "a} # 1"})
    page, other = (
        generate_latest(registry).decode(),
        openmetrics.generate_latest(registry, escaping="allow-utf-8").decode(),
    )
    assert comparable(PromParser().parse(page)) == comparable(reference(page))
    assert comparable(PromParser().parse(other)) == comparable(reference(other, openmetrics_families))


def test_only_requested_metrics_are_kept_and_others_skipped() -> None:
    page = 'go_gc{broken 1\nvllm:a{engine="0"} 1\nvllm_other 2\n{"vllm:b"} 2\n{"c"} 2\nprocess_cpu_seconds_total 3\n'
    samples = PromParser(("vllm:", "process_cpu_seconds_total")).parse(page)
    assert [sample.metric for sample in samples] == ["vllm:a", "vllm:b", "process_cpu_seconds_total"]


BAD = (
    "vllm:a", 'vllm:a{engine="0"}', "vllm:a one", "vllm:a 1_000", 'vllm:a{engine="0" 1', "vllm:a{engine=0} 1", "vllm:a{=} 1",
    'vllm:a{engine="0"} 1 2 3', 'vllm:a{engine="0"} 1 soon', 'vllm:a{b="1",b="2"} 1', "<b>vllm:a</b> 1", "\0vllm:a 1", '{"a" 1'
)  # fmt: skip
_series = st.tuples(
    st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,5}", fullmatch=True),
    st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,3}", fullmatch=True), _label, max_size=3),
    st.floats(allow_nan=False),
    st.none() | st.integers(1_500_000_000_000, 2_000_000_000_000),  # ms
)


@given(st.lists(_series, max_size=9), st.booleans(), st.lists(st.sampled_from(BAD), max_size=9), st.randoms())
def test_bad_lines_of_either_format_cost_these_lines(
    series: list[Any], new: bool, bad: list[str], random: Random
) -> None:
    parser, lines, expected = PromParser(), list(bad), []
    for metric, labels, value, at_ms in series:
        blank, end = random.choice((" ", "  ", "\t")), random.choice(("", " ", "\t", "\r"))
        time = "" if at_ms is None else f"{blank}{at_ms / 1000:.3f}" if new else f"{blank}{at_ms}"
        braces = f"{{{pairs(labels)}}}" if labels or random.random() < 0.5 else ""
        lines.append(f"{metric}{braces}{blank}{value!r}{time}" + (' # {trace_id="} 1"} 0.5 17' if new else end))
        at_ns = None if at_ms is None else at_ms * 1_000_000
        expected.append(Sample(metric, tuple(sorted(labels.items())), value, at_ns))
    random.shuffle(lines)
    page = "\n".join(["# TYPE x unknown", *lines, "# EOF", ""])
    for _ in range(2):  # without and with known series
        if bad and not expected:
            with pytest.raises(ValueError, match="not a metrics page"):
                parser.parse(page)
        else:
            assert comparable(parser.parse(page)) == comparable(expected)
        assert (parser.unread, parser.example in map(repr, bad)) == (len(bad), bool(bad))


def test_bodies_are_decompressed_and_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    page = 'vllm:a{b="ü"} 1\n' * 100
    body = gzip.compress(page[:50].encode()) + gzip.compress(page[50:].encode())
    assert page_text(b"\xef\xbb\xbf" + page.encode()) == page_text(page.encode(), "no-such") == page
    assert page_text(page.encode("latin-1"), "iso-8859-1") == page_text(body, None, "gzip") == page
    monkeypatch.setattr(exposition, "MAX_PAGE_BYTES", 200)
    for read, why in (
        (lambda: page_text(body), "longer than 200 bytes"),
        (lambda: page_text(gzip.compress(b"a 1\n")[:-9]), "cut off"),
        (lambda: page_text(b"\x1b\x00", None, "br"), "compressed as br"),
        (lambda: PromParser().parse("<!doctype html>\n<p>1 2"), "HTML, not a metrics page"),
        (lambda: PromParser().parse(' [{"iter": 1}]'), "JSON, not a metrics page"),
    ):
        with pytest.raises(ValueError, match=why):
            read()
