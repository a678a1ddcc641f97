"""The fast parser of metrics pages against the reference parsers."""

import gzip
import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client import Enum as StateSet
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families_of_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from inferload.servers import exposition
from inferload.servers.exposition import PromParser, Sample, age_s, page_text, parse
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
"""


def reference(page: str, families: Callable[..., object] = text_string_to_metric_families) -> list[Sample]:
    return [
        Sample(sample.name, tuple(sorted(sample.labels.items())), sample.value, _ns(sample.timestamp))
        for family in families(page)  # type: ignore[attr-defined]
        for sample in family.samples
    ]


def _ns(timestamp: object) -> int | None:
    return None if timestamp is None else round(float(timestamp) * 1e9)  # type: ignore[arg-type]


def comparable(samples: list[Sample]) -> list[tuple[str, tuple[tuple[str, str], ...], str, float | None]]:
    """Return the samples sorted, as the order within a page is not compared, and with NaN equal to NaN."""
    return sorted(
        ((*sample[:2], repr(float(sample.value)), sample.at_ns and round(sample.at_ns, -3)) for sample in samples),
        key=repr,
    )


def test_pages_are_read_as_by_the_reference_parser() -> None:
    assert comparable(parse(AWKWARD)) == comparable(reference(AWKWARD))


def test_values_are_parsed() -> None:
    values = [sample.value for sample in parse(AWKWARD)]
    assert values[:5] == [1.0, 0.0025, math.inf, 7.0, -math.inf]
    assert math.isnan(values[5])


_label = st.text(
    st.characters(exclude_categories=("Cs", "Zl", "Zp", "Cc"), include_characters='\n\\"}{,= '), max_size=12
)


@given(
    st.lists(st.tuples(_label, _label, st.floats(allow_nan=True)), max_size=8),
    st.lists(st.floats(0, 1000), max_size=5),
)
def test_pages_of_the_client_library_are_read(rows: list[tuple[str, str, float]], seen: list[float]) -> None:
    registry = CollectorRegistry()
    Info("vllm:build", "An info", registry=registry).info({"version": "1 # {}"})
    StateSet("vllm:sleep", "A state set", states=["on", "off"], registry=registry)
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
    assert comparable(parse(page)) == comparable(reference(page))
    assert comparable(parse(other)) == comparable(reference(other, families_of_openmetrics))


def test_only_requested_metrics_are_kept_and_others_skipped() -> None:
    page = 'go_gc{broken 1\nvllm:a{engine="0"} 1\nvllm_other 2\nprocess_cpu_seconds_total 3\n'
    samples = parse(page, ("vllm:", "process_cpu_seconds_total"))
    assert [sample.metric for sample in samples] == ["vllm:a", "process_cpu_seconds_total"]


@pytest.mark.parametrize(
    "line",
    [
        "vllm:a",
        'vllm:a{engine="0"}',
        "vllm:a one",
        "vllm:a 1_000",
        'vllm:a{engine="0" 1',
        "vllm:a{engine=0} 1",
        'vllm:a{engine="0"} 1 2 3',
        'vllm:a{engine="0"} 1 soon',
        "vllm:a{=} 1",
        "<html>vllm:a</html> 1",
    ],
)
def test_a_bad_line_costs_that_line(line: str) -> None:
    parser = PromParser()
    for _ in range(2):
        samples = parser.parse(f"vllm:before 1\n{line}\nvllm:after 2\n")
        assert [sample.metric for sample in samples] == ["vllm:before", "vllm:after"]
        assert (parser.unread, parser.example) == (1, repr(line))
    parser.parse("vllm:a 1\n")
    assert parser.unread == 0


_series = st.tuples(
    st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,5}", fullmatch=True),
    st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,3}", fullmatch=True), _label, max_size=3),
    st.floats(allow_nan=False),
    st.none() | st.integers(1_500_000_000_000, 2_000_000_000_000),  # ms
)


@given(st.lists(_series, max_size=9), st.booleans(), st.booleans(), st.sets(st.integers(0, 8)), st.randoms())
def test_generated_pages_are_read_but_for_their_corrupt_lines(
    series: list[tuple[str, dict[str, str], float, int | None]],
    seconds: bool,
    exemplars: bool,
    corrupt: set[int],
    random: Random,
) -> None:
    parser, lines, expected, spoilt = PromParser(), [], [], 0
    for number, (metric, labels, value, at_ms) in enumerate(series):
        braces = f"{{{pairs(labels)}}}" if labels or random.random() < 0.5 else ""
        time = "" if at_ms is None else f" {at_ms / 1000:.3f}" if seconds else f" {at_ms}"
        line = f"{metric}{braces} {value!r}{time}" + (' # {trace_id="} 1"} 0.5 17' if exemplars else "")
        if number in corrupt:
            line, spoilt = random.choice(["\0", "{", '"', "=", "<b>"]) + line, spoilt + 1
        else:
            at_ns = None if at_ms is None else at_ms * 1_000_000
            expected.append(Sample(metric, tuple(sorted(labels.items())), value, at_ns))
        lines.append(line)
    page = "\n".join(["# TYPE x unknown", *lines, "# EOF", ""])
    for _ in range(2):  # without and with known series
        if expected or not spoilt:
            assert comparable(parser.parse(page)) == comparable(expected)
        else:
            with pytest.raises(ValueError, match="not a metrics page"):
                parser.parse(page)
        assert parser.unread == spoilt


@given(st.text())
def test_any_text_is_samples_and_unread_lines_or_no_page(text: str) -> None:
    parser = PromParser()
    try:
        samples = parser.parse(text)
    except ValueError:
        samples = []
    assert len(samples) + parser.unread <= text.count("\n") + 1


@pytest.mark.parametrize(
    ("page", "kind"), [("<!doctype html>\n<p>1 2", "HTML"), (' [{"iter": 1}]', "JSON"), ("not found", "text such as")]
)
def test_what_is_no_metrics_page_is_named(page: str, kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind}.*not a metrics page"):
        parse(page)


def test_quoted_names_are_read() -> None:
    page = '{"vllm:a",b="1"} 2\n{"own.name","label.name"="}"} 3 17\n'
    samples = [Sample("vllm:a", (("b", "1"),), 2.0), Sample("own.name", (("label.name", "}"),), 3.0, 17_000_000_000)]
    assert parse(page) == samples
    assert parse(page, ("vllm:",)) == samples[:1]


def test_the_age_of_a_page_is_that_of_its_oldest_sample() -> None:
    assert age_s(parse("vllm:a 1\n"), 20_000_000_000) is None
    assert age_s(parse("vllm:a 1\nvllm:b 1 12000000000\n"), 12_000_000_020_000_000_000) == 20
    assert age_s(parse("vllm:a 1 1700000000\n"), 1_600_000_000_000_000_000) == 0


def test_bodies_are_decompressed_and_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    page = 'vllm:a{b="ü"} 1\n' * 100
    assert page_text(page.encode()) == page_text(b"\xef\xbb\xbf" + page.encode()) == page
    assert page_text(page.encode("latin-1"), "iso-8859-1") == page_text(page.encode(), "no-such") == page
    body = gzip.compress(page[:50].encode()) + gzip.compress(page[50:].encode())
    assert page_text(body, None, "gzip") == page
    with pytest.raises(ValueError, match="cut off"):
        page_text(body[:-20])
    with pytest.raises(ValueError, match="compressed as br"):
        page_text(b"\x1b\x00", None, "br")
    monkeypatch.setattr(exposition, "MAX_PAGE_BYTES", 200)
    with pytest.raises(ValueError, match="longer than 200 bytes"):
        page_text(body)


def test_a_known_series_gives_new_values() -> None:
    parser = PromParser(("vllm:",))
    first, second = (parser.parse(f'vllm:a{{b="2",a="1"}} {value}\n') for value in (1, 2))
    assert first == [Sample("vllm:a", (("a", "1"), ("b", "2")), 1.0)]
    assert second == [Sample("vllm:a", (("a", "1"), ("b", "2")), 2.0)]
