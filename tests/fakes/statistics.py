"""Tests of frequencies."""

from __future__ import annotations

import math

from hpcdi.types import Array


def chi_square_p(counts: Array, expected: Array) -> float:
    """p-value of the chi-square test of counts against expected counts.

    By the normal approximation of Wilson and Hilferty (1931), which is good to a tenth here.
    """
    cells = expected > 0
    assert not counts[~cells].any()
    k = cells.sum() - 1
    x = float((((counts - expected) ** 2)[cells] / expected[cells]).sum())
    z = ((x / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))
