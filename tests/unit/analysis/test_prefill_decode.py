"""Causes of servers for prefill and decode together."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import synthetic_run
from inferload.analysis.data.frames import RunFrames, load
from inferload.analysis.diagnosis.group import STARVED, group_findings
from msgspec.structs import replace as changed
from window_evidence import window_evidence

from inferload.figures.pages import metric_names as names
from inferload.results.open_run import OpenRun
from inferload.servers.bottleneck.evidence import Scrapes
from inferload.servers.bottleneck.finding import Finding
from inferload.servers.roles import DECODE, PREFILL, Role
from inferload.servers.scrapes_file import ScrapeColumns
from inferload.servers.series import by_target

FIRST, THEN = "http://a:8000", "http://b:8000"
TIMES = {names.E2E: (0.3, 0.9), names.TTFT: (0.3, 0.1)}  # s, of each of 100 requests at both


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFrames:
    return load(OpenRun(synthetic_run.write(tmp_path_factory.mktemp("runs") / "chat")))


def findings(
    run: RunFrames,
    first: dict[str, Any],
    then: dict[str, Any],
    roles: tuple[str | None, str | None] = (PREFILL, DECODE),
) -> dict[str, Finding]:
    """Return the findings on two servers with this evidence, by code."""
    columns, group = ScrapeColumns(), []
    for at, (target, role, figures) in enumerate(zip((FIRST, THEN), roles, (first, then), strict=True)):
        for at_s in (0, 30):
            rows = {names.RUNNING: 1.0, names.FINISHED: 100.0, names.GENERATION_TOKENS: 100.0 + 900 * at}
            rows |= {f"{name}_sum": 100 * each[at] for name, each in TIMES.items()}
            rows |= {f"{name}_count": 100.0 for name in TIMES}
            for name, value in rows.items():
                wall_ns = synthetic_run.START_WALL_NS + at_s * synthetic_run.NS
                columns.append(wall_ns, target, name, (), value if at_s or name == names.RUNNING else 0.0)
        client: dict[str, Any] = {"client_ttft_ms": 405.0, "attributed": False, "behind": True, "finished": 100}
        evidence = window_evidence(scrapes(**figures.pop("gauges", {})), role=role, **client | figures)
        group.append(changed(evidence, target=target))
    known = {target: Role(role, "option") for target, role in zip((FIRST, THEN), roles, strict=True) if role}
    found = group_findings(replace(run, servers=by_target([columns.to_table()], known=known)), group)
    return {finding.code: finding for finding in found}


def scrapes(running: float = 4.0, capacity: float = 0.0, kv: float = 0.2, fetching: float = 0.0) -> Scrapes:
    full = [np.full(40, value) for value in (running, capacity, fetching, kv, np.nan)]
    return Scrapes(np.arange(40) * 0.75, *full, fetching=full[2])


QUEUED = {"gauges": {"capacity": 6.0}, "queue_ms": 400.0, "prefill_ms": 100.0, "decode_ms": 0.0}
FREE = {"gauges": {"running": 4.0}, "max_num_seqs": 16}


@pytest.mark.parametrize(
    ("first", "then", "probable"),
    [
        (QUEUED, FREE, False),
        (QUEUED, FREE | {"gauges": {"running": 8.0}}, False),
        (QUEUED, FREE | {"max_num_seqs": None}, True),
        (QUEUED, FREE | {"gauges": {"running": 9.0}}, None),  # more than half of the slots
        (QUEUED, FREE | {"gauges": {"capacity": 3.0}}, None),  # both are overloaded
        (QUEUED, FREE | {"gauges": {"kv": 0.85}}, None),
        (QUEUED, FREE | {"gauges": {"running": np.nan}}, None),  # not known
        (
            QUEUED,
            FREE | {"gauges": {"fetching": 2.0}, "transfers": 100, "queue_ms": 300.0},
            None,
        ),  # the transfer limits
        ({"queue_ms": 0.1, "prefill_ms": 100.0, "decode_ms": 0.0}, FREE, None),
    ],
)
def test_decode_waits_for_prefill(
    run: RunFrames, first: dict[str, Any], then: dict[str, Any], probable: bool | None
) -> None:
    found = findings(run, dict(first), dict(then))
    assert (found[STARVED].probable if STARVED in found else None) is probable
    if probable is False:
        assert "6 requests waited for prefill on average, 400 ms each" in found[STARVED].figures
    assert STARVED not in findings(run, dict(first), dict(then), roles=(None, None))


def test_the_times_of_prefill_are_not_before_the_servers(run: RunFrames) -> None:
    """400 ms in both servers and 5 between; without roles their mean is 200 ms."""
    assert "before-server" not in findings(run, {}, {})
    assert "before-server" in findings(run, {}, {}, roles=(None, None))
    assert "outlier" not in findings(run, {}, {})
