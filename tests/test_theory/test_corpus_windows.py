"""Windows of a corpus as a data set."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from theory import corpus, data, signatures
from theory.corpus import documents, reading
from theory.errors import UserError


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", "off")


@pytest.mark.parametrize(("length", "stride"), [(7, None), (3, 2), (1, 1)])
def test_one_text_gives_the_windows_of_the_text_task(tmp_path, length, stride):
    path = tmp_path / "text.txt"
    path.write_text(" ".join(np.random.default_rng(0).choice(list("abcdefg"), 500)))
    mine = corpus.windows(path, vocabulary=5, length=length, stride=stride)
    reference = data.load("text", path=str(path), vocabulary=5, length=length, stride=stride)
    for field in ("tokens", "labels"):
        assert np.array_equal(getattr(mine, field), getattr(reference, field))
    assert mine.token_names == reference.token_names and mine.sizes == reference.sizes


@pytest.mark.parametrize("size", [1, 40, 1 << 20])
def test_windows_stay_within_documents_whatever_the_blocks(size, monkeypatch):
    monkeypatch.setattr(reading.blocks, "__defaults__", (None, size))
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(list("abc"), n)) for n in (0, 1, 4, 5, 17, 9, 0, 30)]
    found = corpus.windows(texts, length=4)
    index = {name: i for i, name in enumerate(found.token_names)}
    expected = []
    for text in texts:
        ids = [index[word] for word in text.split()]
        expected += [ids[i : i + 5] for i in range(0, len(ids) - 4, 4)]
    assert np.array_equal(np.column_stack([found.tokens, found.labels[:, -1]]), expected)


@pytest.mark.parametrize("stride", [1, 3, 4, 9, 200])
def test_a_text_read_in_pieces_gives_the_same_windows(tmp_path, stride, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 64)
    monkeypatch.setattr(documents, "_SEARCHED", 32)
    monkeypatch.setattr(reading.blocks, "__defaults__", (None, 1))
    path = tmp_path / "text.txt"
    path.write_text(" ".join(np.random.default_rng(3).choice(list("abc"), 900)))
    mine = corpus.windows(path, length=3, stride=stride)
    reference = data.load("text", path=str(path), length=3, stride=stride)
    assert np.array_equal(mine.tokens, reference.tokens) and np.array_equal(mine.labels, reference.labels)


def test_counts_are_those_of_the_windows_where_none_is_shorter():
    rng = np.random.default_rng(2)
    texts = [" ".join(rng.choice(list("abcd"), 4 * n + 1)) for n in (1, 3, 6)]
    dataset = corpus.windows(texts, length=4)
    counts = corpus.count(texts, length=4, past=True)
    for mine, reference in (
        (counts.next_token(), signatures.next_token_signature(dataset)),
        (counts.prefix(), signatures.prefix_signature(dataset)),
    ):
        np.testing.assert_allclose(mine.array, reference.array, rtol=1e-13)


def test_what_gives_no_windows(monkeypatch):
    with pytest.raises(UserError, match="no document of corpus .* holds the 33 tokens of one window and its label"):
        corpus.windows(["a b c"])
    for name, value in itertools.product(("length", "stride"), (0, True, 1.5)):
        with pytest.raises(UserError, match=f"{name}= must be an integer ≥ 1"):
            corpus.windows(["a b c"], **{name: value})
    monkeypatch.setattr("theory.data.options.ENTRY_LIMIT", 10)
    with pytest.raises(UserError, match="more than 10 tokens do not fit in memory; take a larger stride="):
        corpus.windows(["a b " * 20], length=2)
