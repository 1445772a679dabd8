"""A median, and how far it can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Holds the true median 95 times in 100, whatever the distribution: the number of values below the median is binomial, 1.96 of its
    deviations to either side are 95 %."""
    ordered, reach = sorted(values), 0.98 * len(values) ** 0.5
    middle = (len(ordered) - 1) / 2
    return ordered[max(0, math.floor(middle - reach))], ordered[min(len(ordered) - 1, math.ceil(middle + reach))]
