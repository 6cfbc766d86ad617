"""A corpus counted on a local Dask cluster of several processes: equal to the bit, also when a worker dies."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from theory import corpus
from theory.corpus import cluster, whole
from theory.errors import UserError

distributed = pytest.importorskip("distributed", reason="clusters need the package distributed")
dask = pytest.importorskip("dask", reason="clusters need the package dask")
WANTED = dict(distances=(1, 3), length=6, past=True, moments=True, prefix_set=["a"], shard=20_000)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    for i in range(24):
        (folder / f"{i:02}.txt").write_text(" ".join(rng.choice(list("aaabbcdefg"), 6000)))
    (folder / "rows.jsonl").write_text("".join(f'{{"text": "a b {"c" * (i % 7 + 1)}"}}\n' for i in range(2000)))
    return folder


@pytest.fixture(scope="module")
def local():
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # a killed worker is told at length
    # In processes of their own, all ports free ones: several test sessions may run on one machine.
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=logging.CRITICAL
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", "off")


def slow_part(part, made, request):
    """As the part is counted, but long enough for a worker to be killed meanwhile."""
    time.sleep(0.2)
    return READ_PART(part, made, request)


READ_PART = whole._read_part


def test_counts_on_a_cluster_are_equal_to_the_bit(texts, local):
    expected = corpus.count(texts, **WANTED)
    found = corpus.count(texts, scheduler=local.scheduler_address, **WANTED)
    assert len(corpus.open_corpus(texts).shards(WANTED["shard"])) > 10
    assert found.equals(expected) and found.names == expected.names
    with distributed.Client(local, set_as_default=False) as client:
        assert corpus.count(texts, "byte", scheduler=client, shard=20_000).equals(corpus.count(texts, "byte"))


def test_a_killed_worker_loses_nothing(texts, local, monkeypatch):
    monkeypatch.setattr(whole, "_read_part", slow_part)
    expected = corpus.count(texts, "byte", past=True, cache=False)
    finished = []
    real = cluster.results

    def watched(function, parts, common, scheduler):
        for found in real(function, parts, common, scheduler):
            finished.append(found)
            yield found

    monkeypatch.setattr(whole, "results", watched)
    victims = []

    def kill() -> None:
        while len(finished) < 3:
            time.sleep(0.02)
        process = next(iter(local.workers.values()))
        victims.append(process.pid)
        os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    found = corpus.count(texts, "byte", past=True, scheduler=local.scheduler_address, shard=20_000)
    thread.join()
    assert victims and len(finished) == len(corpus.open_corpus(texts).shards(20_000))
    assert found.equals(expected)


def dies(part, made, request):
    """What a part does that no worker survives."""
    os._exit(1)


def test_a_part_that_no_worker_survives_is_told(texts, monkeypatch):
    monkeypatch.setattr(whole, "_read_part", dies)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=logging.CRITICAL
        ) as local,
        pytest.raises(
            UserError, match="workers of the cluster died over and over while reading one part; the last was"
        ),
    ):
        corpus.count(texts, "byte", scheduler=local.scheduler_address)


def test_a_scheduler_without_workers_is_told(texts, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0", processes=False) as local,
        pytest.raises(UserError, match="the scheduler at '.*' has no worker"),
    ):
        corpus.count(texts, "byte", scheduler=local.scheduler_address)


def test_a_mistake_in_the_text_is_told_as_on_one_machine(texts, local, tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text("a b " * 10)
    (tmp_path / "2.txt").write_bytes(b"a b\ncaf\xe9")
    with pytest.raises(UserError, match=r"2.txt' is not UTF-8: byte 0xe9 at byte offset 7, line 2"):
        corpus.count(tmp_path, scheduler=local.scheduler_address, shard=1)


def test_a_scheduler_that_does_not_answer(texts, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    with pytest.raises(UserError, match="no Dask scheduler answers at 'tcp://127.0.0.1:9'"):
        corpus.count(texts, scheduler="tcp://127.0.0.1:9")
    with pytest.raises(UserError, match="a scheduler is an address like"):
        corpus.count(texts, scheduler=3)
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(UserError, match="pip install 'dask\\[distributed\\]'"):
        corpus.count(texts, scheduler="tcp://127.0.0.1:9")
