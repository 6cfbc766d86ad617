"""Spectra of embeddings: effective rank, Fourier profile over cyclic tokens, principal components and their alignment.

Everything here is about one array of rows (token, width), or about such arrays along leading axes (seed, time, …).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from scipy.special import entr

from compare.comparison import jsonable
from theory.errors import UserError


@dataclass(frozen=True)
class EffectiveRank:
    """How many directions rows use, in two measures; arrays have the leading axes of the rows. nan for rows that are 0.

    - `entropy`: exp(−Σ p_i ln p_i), p_i = s_i / Σ s, s the singular values (Roy and Vetterli, EUSIPCO 2007).
    - `participation`: (Σ s_i²)² / Σ s_i⁴, the participation ratio of the squared singular values.

    Both lie between 1 and the rank, and equal it when all singular values that are not 0 are equal.
    """

    entropy: np.ndarray
    participation: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        return {"entropy": jsonable(self.entropy), "participation": jsonable(self.participation)}


def effective_rank(rows: np.ndarray, *, centred: bool = False) -> EffectiveRank:
    """Effective rank of rows (…, token, width).

    **Arguments:** `centred`: subtract the mean row first, as principal components do; otherwise a common direction of all
    tokens counts as one direction.

    **Raises:** `UserError` for an array without the two axes or with numbers that are not finite.
    """
    rows = _finite_rows(rows)
    if centred:
        rows = rows - rows.mean(axis=-2, keepdims=True)
    # Scaling by the largest entry keeps powers of tiny embeddings from underflowing.
    largest = np.abs(rows).max(axis=(-1, -2), keepdims=True)
    values = np.linalg.svd(np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0), compute_uv=False)
    with np.errstate(invalid="ignore"):
        entropy = np.exp(entr(values / values.sum(axis=-1, keepdims=True)).sum(axis=-1))
        participation = (values**2).sum(axis=-1) ** 2 / (values**4).sum(axis=-1)
    return EffectiveRank(entropy, participation)


@dataclass(frozen=True)
class FourierProfile:
    """Power of embeddings by frequency over n cyclic tokens.

    `power` (…, frequency), frequencies k = 0 … ⌊n/2⌋: ‖ŵ_k‖² with ŵ_k = n^{−1/2} Σ_j w_j e^{−2πijk/n}, those of k and n − k
    added, so that Σ_k power_k = Σ_j ‖w_j‖² (Parseval). k = 0 is the common direction of all tokens.
    """

    power: np.ndarray
    n: int

    @property
    def frequencies(self) -> np.ndarray:
        return np.arange(self.power.shape[-1])

    @property
    def share(self) -> np.ndarray:
        """power_k / Σ_{k ≥ 1} power for k ≥ 1, (…, frequency), and 0 at k = 0; nan where nothing varies with the token."""
        varying = self.power.copy()
        varying[..., 0] = 0.0
        total = varying.sum(axis=-1, keepdims=True)
        return np.divide(varying, total, out=np.full(varying.shape, np.nan), where=total > 0)

    def dominant(self, portion: float = 0.9) -> list[int]:
        """The fewest frequencies k ≥ 1, strongest first, that hold at least `portion` of the varying power.

        **Raises:** `UserError` for a portion outside (0, 1], several profiles at once, or when nothing varies.
        """
        if not 0 < portion <= 1:
            raise UserError(f"a portion of the power lies in (0, 1], found {portion!r}")
        if self.power.ndim != 1:
            raise UserError(f"dominant frequencies are those of one profile, found shape {self.power.shape}")
        share = self.share
        if np.isnan(share).any():
            raise UserError("the embeddings do not vary with the token, so no frequency dominates")
        order = np.argsort(-share, kind="stable")
        # Shares add up to 1 but for rounding.
        needed = int(np.searchsorted(np.cumsum(share[order]), portion - 1e-12)) + 1
        return order[:needed].tolist()

    def to_dict(self) -> dict[str, Any]:
        return {"n": self.n, "power": jsonable(self.power), "share": jsonable(self.share)}


def fourier_profile(rows: np.ndarray) -> FourierProfile:
    """Fourier power of rows (…, token, width) whose tokens are a cyclic set in cyclic order, e.g. numbers modulo n.

    Power of real rows does not depend on which token comes first. The signatures' own profile, ρ_(1),k, is
    `compare.probes.fourier_correlation`.

    **Raises:** `UserError` for an array without the two axes or with numbers that are not finite.
    """
    rows = _finite_rows(rows)
    n = rows.shape[-2]
    power = (np.abs(np.fft.rfft(rows, axis=-2, norm="ortho")) ** 2).sum(axis=-1)
    # Every frequency but 0 and n/2 stands for its mirror image too.
    paired = np.arange(power.shape[-1])
    paired = (paired > 0) & (2 * paired != n)
    return FourierProfile(power * np.where(paired, 2.0, 1.0), n)


@dataclass(frozen=True)
class PrincipalComponents:
    """Principal components of rows (token, width), the mean row subtracted.

    - `scores`: (token, component); `directions`: (component, width), orthonormal; each direction's largest entry is positive.
    - `explained`: (component,), the share of the total variance; of all components they sum to 1.
    - `mean`: (width,).
    """

    scores: np.ndarray
    directions: np.ndarray
    explained: np.ndarray
    mean: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        return {"scores": jsonable(self.scores), "explained": jsonable(self.explained)}


def principal_components(rows: np.ndarray, count: int = 2) -> PrincipalComponents:
    """The first `count` principal components, of embeddings (token, width) or of a signature's rows (token, modes …).

    **Raises:** `UserError` when there are fewer components than `count`, or the rows are all the same or not finite.
    """
    rows = np.asarray(rows, dtype=np.float64)
    rows = _finite_rows(rows.reshape(len(rows), -1) if rows.ndim > 2 else rows)
    if not 1 <= count <= min(rows.shape):
        raise UserError(
            f"rows of shape {rows.shape} have 1 … {min(rows.shape)} principal components, found count = {count}"
        )
    mean = rows.mean(axis=0)
    left, values, directions = np.linalg.svd(rows - mean, full_matrices=False)
    # What rounding leaves of rows that are all the same.
    if not values[0] > 1e-13 * np.linalg.norm(rows):
        raise UserError("the rows are all the same, so they have no principal components")
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    scores, directions = left * values * signs, directions * signs[:, None]
    return PrincipalComponents(scores[:, :count], directions[:count], (values**2 / (values**2).sum())[:count], mean)


@dataclass(frozen=True)
class Alignment:
    """Rows moved onto target rows by a shift, a rotation or reflection and, where asked for, one scale (Procrustes).

    - `aligned`: (token, width), in the frame of the target; `rotation`: (width, width), orthogonal; `scale`.
    - `residual`: ‖aligned − target‖² / ‖target − its mean‖²: 0 where the two are the same shape.
    """

    aligned: np.ndarray
    rotation: np.ndarray
    scale: float
    residual: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "aligned": jsonable(self.aligned),
            "rotation": jsonable(self.rotation),
            "scale": self.scale,
            "residual": self.residual,
        }


def procrustes(target: np.ndarray, rows: np.ndarray, *, scaled: bool = False) -> Alignment:
    """The orthogonal Procrustes alignment of `rows` with `target`, both (token, width), token for token.

    Minimises ‖s (X − x̄) R + ȳ − Y‖ over orthogonal R, and over the scale s with `scaled` (otherwise s = 1); closed form by
    one singular value decomposition (Schönemann, Psychometrika 1966). Embeddings are defined up to a rotation only, so
    that predicted and trained principal components of two runs are comparable after it.

    **Raises:** `UserError` for different shapes, numbers that are not finite, or a target or rows that are one point.
    """
    target, rows = _finite_rows(target), _finite_rows(rows)
    if target.shape != rows.shape or target.ndim != 2:
        raise UserError(
            f"Procrustes alignment needs two equal shapes (token, width), found {target.shape} and {rows.shape}"
        )
    centre, moving = target - target.mean(axis=0), rows - rows.mean(axis=0)
    size = float((centre**2).sum())
    if not size > 0 or not (moving**2).sum() > 0:
        raise UserError("Procrustes alignment needs rows that are not all the same")
    rotation, total = scipy.linalg.orthogonal_procrustes(moving, centre)
    scale = float(total / (moving**2).sum()) if scaled else 1.0
    aligned = scale * moving @ rotation
    residual = float(((aligned - centre) ** 2).sum() / size)
    return Alignment(aligned + target.mean(axis=0), rotation, scale, residual)


def _finite_rows(rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows, dtype=np.float64)
    if rows.ndim < 2 or 0 in rows.shape[-2:]:
        raise UserError(f"rows need the axes (…, token, width), found shape {rows.shape}")
    if not np.all(np.isfinite(rows)):
        raise UserError("rows hold numbers that are not finite")
    return rows
