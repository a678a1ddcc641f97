"""Clocks of busy GPUs in the first and the last quarter of a window."""

from collections.abc import Sequence

import numpy as np
import pytest

from inferload.figures.pages import metric_names as names
from inferload.results.summarise.gpus import fallen_most
from inferload.servers.series import MetricSeries, ServerSeries
from inferload.servers.window import ServerWindow

FALLING = [1500.0] * 4 + [1400.0] * 8 + [1200.0] * 4
STEADY = [1500.0] * 16


def window(clocks: dict[str, Sequence[float]], uses: dict[str, Sequence[float]], extra: str = "") -> ServerWindow:
    """Return a window with a scrape each second, over series by the number of the GPU. `extra`: a label of the clocks only."""
    wall_ns = np.arange(16, dtype=np.int64) * 10**9
    more = {"clock_type": extra} if extra else {}
    metrics = {
        names.GPU_SM_CLOCK: tuple(MetricSeries({"gpu": gpu} | more, np.array(of)) for gpu, of in clocks.items()),
        names.GPU_USE: tuple(MetricSeries({"gpu": gpu}, np.array(of)) for gpu, of in uses.items()),
    }
    server = ServerSeries("http://a:9400", wall_ns, metrics, np.zeros(16, dtype=np.bool_))
    return ServerWindow.of(server, 0, 15 * 10**9)


BUSY = [90.0] * 16


@pytest.mark.parametrize("extra", ["", "GPU_CLOCK_TYPE_SYSTEM"])
def test_the_gpu_whose_clock_fell_most_is_found(extra: str) -> None:
    found = fallen_most([window({"0": STEADY, "1": FALLING}, {"0": BUSY, "1": BUSY}, extra)])
    assert found is not None
    assert (found.gpu, found.first_mhz, found.last_mhz, round(found.fall, 3)) == ("1", 1500, 1200, 0.2)


@pytest.mark.parametrize(
    ("clocks", "uses"),
    [
        ({"0": FALLING}, {"0": [90.0] * 12 + [0.0] * 4}),  # idle at the end: its clock falls by itself
        ({"0": FALLING}, {"1": BUSY}),  # the use of another GPU
        ({"0": [float("nan")] * 16}, {"0": BUSY}),
        ({"0": [0.0] * 16}, {"0": BUSY}),
        ({}, {}),
    ],
)
def test_no_fall_is_known(clocks: dict[str, list[float]], uses: dict[str, list[float]]) -> None:
    assert fallen_most([window(clocks, uses)]) is None
