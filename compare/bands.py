"""Confidence bands over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from compare.comparison import jsonable
from theory.errors import UserError, nearest


@dataclass(frozen=True)
class Band:
    """Mean over seeds with two bands; every array has the axes of the series without its seed axis.

    - `mean`, `low`, `high`: the mean and its t-interval at `confidence`: where the mean over all seeds lies.
    - `quantile_low`, `quantile_high`: the central quantiles at `confidence`: where single seeds lie.
    - `count`: how many seeds entered.
    - `nan_policy`: "propagate" or "omit", see `band`.
    """

    confidence: float
    nan_policy: str
    count: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    quantile_low: np.ndarray
    quantile_high: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        names = ("count", "mean", "low", "high", "quantile_low", "quantile_high")
        arrays = {name: jsonable(getattr(self, name)) for name in names}
        return {"confidence": self.confidence, "nan_policy": self.nan_policy, **arrays}


def band(
    series: np.ndarray, *, confidence: float = 0.95, nan_policy: Literal["propagate", "omit"] = "propagate"
) -> Band:
    """Mean, t-interval of the mean, and quantiles over seeds.

    t-interval: mean ± t_{(1+c)/2, n−1} · s / √n, s with n − 1 (Student); it takes seeds to be independent and is exact for
    normal ones. Quantiles interpolate linearly between order statistics (Hyndman and Fan's type 7), so that they need
    about 2 / (1 − c) seeds to be more than the extremes.

    **Arguments:** `series`: (seed, …); `confidence`: c, in (0, 1); `nan_policy`: "propagate" (the default: where one seed
    has no number the band has none, since a band over the seeds that happen to be left is biased), or "omit" (over the
    seeds that have a number; `count` says how many).

    **Returns:** a `Band`; the t-interval is nan where fewer than two seeds enter, everything where none does.

    **Raises:** `UserError` for a series without two seeds, a confidence outside (0, 1) or an unknown policy.
    """
    series = np.asarray(series, dtype=np.float64)
    if series.ndim < 1 or len(series) < 2:
        raise UserError(
            f"a band over seeds needs the axes (seed, …) with at least two seeds, found shape {series.shape}"
        )
    if not 0 < confidence < 1:
        raise UserError(f"the confidence of a band lies between 0 and 1, found {confidence!r}")
    if nan_policy not in ("propagate", "omit"):
        raise UserError(f"unknown nan_policy {nan_policy!r}; {nearest(nan_policy, ('propagate', 'omit'))}")
    there = ~np.isnan(series)
    if nan_policy == "propagate":
        there &= there.all(axis=0)
    count = there.sum(axis=0)
    known = np.where(there, series, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # 0 / 0 leaves nan where too few seeds enter.
        mean = known.sum(axis=0) / count
        deviation = np.sqrt(np.where(there, (series - mean) ** 2, 0.0).sum(axis=0) / (count - 1))
        half = stats.t.ppf((1 + confidence) / 2, np.maximum(count - 1, 1)) * deviation / np.sqrt(count)
    tail = (1 - confidence) / 2
    columns = np.where(there, series, np.nan).reshape(len(series), -1)
    quantiles = np.full((2, columns.shape[1]), np.nan)
    used = ~np.isnan(columns).all(axis=0)
    quantiles[:, used] = np.nanquantile(columns[:, used], [tail, 1 - tail], axis=0)
    low, high = quantiles.reshape(2, *series.shape[1:])
    return Band(confidence, nan_policy, count, mean, mean - half, mean + half, low, high)
