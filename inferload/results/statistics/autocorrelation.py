"""Autocovariances and the relaxation time of series, by Geyer's initial monotone sequence.

C. J. Geyer, Practical Markov chain Monte Carlo, Statistical Science 7 (1992). Pure maths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def relaxation(series: Sequence[Floats]) -> float:
    """Relaxation time of series of one quantity, in steps: half of the integrated autocorrelation time."""
    variance, long_run = autocovariance(series)
    return max(0.5, long_run / variance / 2) if variance > 0 else 0.5


def autocovariance(series: Sequence[Floats]) -> tuple[float, float]:
    """Return (variance, long-run variance) per step of series with a common mean."""
    together = np.concatenate(series)
    mean = float(together.mean())
    count = len(together)
    most = min(len(values) for values in series)
    gamma = np.zeros(most)
    for values in series:
        gamma += _products(values - mean)[:most]
    gamma /= count
    pairs = gamma[: most - most % 2].reshape(-1, 2).sum(axis=1)
    stop = np.argmax(pairs <= 0) if bool((pairs <= 0).any()) else len(pairs)
    monotone = np.minimum.accumulate(pairs[:stop])
    return float(gamma[0]), max(float(gamma[0]) * 1e-12, float(2 * monotone.sum() - gamma[0]))


def _products(centred: Floats) -> Floats:
    """Sums of products at each lag, by the Fourier transform."""
    size = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    sums: Floats = np.fft.irfft(spectrum * np.conj(spectrum), size)[: len(centred)]
    return sums
