"""The fast parser of metrics pages against the reference parser."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inferload.servers.exposition import PromParser, Sample, parse

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


def reference(page: str) -> list[Sample]:
    return [
        Sample(sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def comparable(samples: list[Sample]) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    """Return the samples sorted, as the order within a page is not compared, and with NaN equal to NaN."""
    return sorted((metric, labels, repr(float(value))) for metric, labels, value in samples)


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
    gauge = Gauge("vllm:some_gauge", "A gauge", ["one", "two"], registry=registry)
    counter = Counter("vllm:some_counter", "A counter", ["one"], registry=registry)
    histogram = Histogram("vllm:some_seconds", "A histogram", registry=registry)
    for one, two, value in rows:
        gauge.labels(one, two).set(value)
        counter.labels(one).inc()
    for value in seen:
        histogram.observe(value)
    page = generate_latest(registry).decode()
    assert comparable(parse(page)) == comparable(reference(page))


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
def test_a_malformed_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2: not a sample"):
        parse(f"vllm:before 1\n{line}\n")


def test_a_known_series_gives_new_values() -> None:
    parser = PromParser(("vllm:",))
    first, second = (parser.parse(f'vllm:a{{b="2",a="1"}} {value}\n') for value in (1, 2))
    assert first == [Sample("vllm:a", (("a", "1"), ("b", "2")), 1.0)]
    assert second == [Sample("vllm:a", (("a", "1"), ("b", "2")), 2.0)]
