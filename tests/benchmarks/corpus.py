"""Counting neighbours on token numbers against np.bincount and scipy's COO→CSR: `make bench` prints the ratios.

Tokens drawn from Zipf's law (frequency 1/rank, as words have) and uniformly, 20 million. References and this package's
`Counting` take turns in one process, best of three, in processor time (each uses one core). The references hold the whole
corpus in memory; the counts here are made block by block. "With table" includes making the sparse table at the end, which
takes V² however long the corpus is. Peak memory is what a child process holds beyond its memory at the start.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse

from theory.corpus.counting import Counting, Request

TOKENS = 20_000_000


def drawn(law: str, v: int, n: int) -> np.ndarray:
    """n token numbers, int32."""
    rng = np.random.default_rng(0)
    if law == "uniform":
        return rng.integers(0, v, n, dtype=np.int32)
    mass = np.cumsum(1 / np.arange(1, v + 1))
    return np.searchsorted(mass / mass[-1], rng.random(n)).astype(np.int32)


def bincount(ids: np.ndarray, v: int) -> object:
    return np.bincount(ids[:-1].astype(np.int64) * v + ids[1:], minlength=v * v)


def coo_to_csr(ids: np.ndarray, v: int) -> object:
    ones = np.ones(len(ids) - 1, dtype=np.int64)
    return scipy.sparse.coo_array((ones, (ids[:-1], ids[1:])), shape=(v, v)).tocsr()


def count(ids: np.ndarray, v: int) -> Counting:
    counting = Counting(v, Request())
    for at in range(0, len(ids), 1 << 20):  # as blocks come from a tokenizer
        counting.add(ids[at : at + (1 << 20)], [0] if at == 0 else [])
    return counting


def rates(v: int, law: str, reference: Callable[[np.ndarray, int], object]) -> tuple[float, float, float]:
    """Million tokens a second: of the reference, of counting, of counting with the table made from it at the end."""
    ids = drawn(law, v, TOKENS)
    best = [np.inf] * 3
    for _ in range(3):
        start = time.process_time()
        reference(ids, v)
        best[0] = min(best[0], time.process_time() - start)
        start = time.process_time()
        counting = count(ids, v)
        best[1] = min(best[1], time.process_time() - start)
        counting.progress()
        best[2] = min(best[2], time.process_time() - start)
        del counting
    return tuple(TOKENS / seconds / 1e6 for seconds in best)  # type: ignore[return-value]


def resident_peak() -> int:
    """KiB. Linux tells a process's own; `getrusage` would begin with what the parent held."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def peak(v: int, tokens: int) -> None:
    """Print the memory (MiB) that counting takes; blocks are drawn anew, so that none is held."""
    block = drawn("zipf", v, 100_000)
    before = resident_peak()
    rng = np.random.default_rng(1)
    counting = Counting(v, Request(distances=(1,), length=16, past=True))
    for i in range(tokens // len(block)):
        counting.add(rng.permutation(block), [0] if i == 0 else [])
    found = counting.progress().tables
    after = resident_peak()
    pairs = found["distance 1"].nnz, found["past count"].nnz
    print(f"{v:8d} {tokens:10d} {(after - before) / 1024:10.0f} {pairs[0]:12d} {pairs[1]:12d} {v * v:14d}")


def main() -> None:
    print(
        f"{'V':>6} {'law':<8} {'reference':<10} {'M tokens/s':>10} {'counting':>10} {'ratio':>6} "
        f"{'with table':>10} {'ratio':>6}"
    )
    for v, reference, bound in (
        (500, bincount, 0.7),
        (1000, bincount, 0.7),
        (5000, bincount, 0.7),
        (50_000, coo_to_csr, 1),
    ):
        for law in ("zipf", "uniform"):
            other, own, table = rates(v, law, reference)
            print(
                f"{v:6d} {law:<8} {reference.__name__:<10} {other:10.1f} {own:10.1f} {own / other:6.2f} {table:10.1f} "
                f"{table / other:6.2f}  bound {bound}"
            )
    print("\npeak memory, neighbours and the token in the past (L = 16) together")
    print(f"{'V':>8} {'tokens':>10} {'MiB':>10} {'neighbours':>12} {'past pairs':>12} {'V²':>14}", flush=True)
    for v, sizes in ((1000, (10**5, 10**6, 10**7, 3 * 10**7)), (50_000, (10**5, 10**6, 10**7))):
        for tokens in sizes:
            subprocess.run([sys.executable, __file__, str(v), str(tokens)], check=True)
    print("bound: at V = 1,000, where nearly all pairs occur from 10⁷ on, at 3·10⁷ at most 1.2 times 10⁷'s")


if __name__ == "__main__":
    peak(*map(int, sys.argv[1:])) if len(sys.argv) > 1 else main()
