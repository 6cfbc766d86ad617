"""Counts kept on disk by content, and counts that were killed and go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from theory import corpus
from theory.corpus import reading, store, whole
from theory.errors import UserError

WANTED = dict(distances=(1, 3), past=True, moments=True, prefix_set=["a"])


@pytest.fixture
def texts(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(12):
        (folder / f"{i:02}.txt").write_text(" ".join(rng.choice(list("aaabbcde"), 500)))
    return folder


class Reads:
    """How many blocks were tokenised."""

    def __init__(self, monkeypatch) -> None:
        self.blocks = 0
        real = reading._block

        def block(*arguments):
            self.blocks += 1
            return real(*arguments)

        monkeypatch.setattr(reading, "_block", block)


def test_a_second_count_is_read_from_disk_and_equal_to_the_bit(texts, tmp_path, monkeypatch):
    reads = Reads(monkeypatch)
    first = corpus.count(texts, **WANTED)
    assert reads.blocks == 1
    second = corpus.count(texts, **WANTED)
    assert reads.blocks == 1 and second.equals(first)
    assert np.array_equal(first.moments().Q.toarray(), second.moments().Q.toarray())
    # The same text elsewhere is the same; whatever else changes is not.
    texts.rename(tmp_path / "moved")
    assert corpus.count(tmp_path / "moved", **WANTED).equals(first) and reads.blocks == 1
    corpus.count(tmp_path / "moved", **(WANTED | {"distances": (1, 2)}))
    corpus.count(tmp_path / "moved", "byte", **WANTED)
    with open(tmp_path / "moved" / "00.txt", "a") as file:
        file.write(" e")
    corpus.count(tmp_path / "moved", **WANTED)
    assert reads.blocks == 4
    corpus.count(tmp_path / "moved", cache=False, **WANTED)
    assert reads.blocks == 5
    for kind, v in (("word", 5), ("byte", 256), ("word", 5)):
        assert len(corpus.count(tmp_path / "moved", kind).names) == v
    for size in (2, 3):
        assert corpus.count(tmp_path / "moved", vocabulary=size).tables["distance 1"].shape == (size + 1, size + 1)


def test_documents_count_and_not_only_their_text(tmp_path, monkeypatch):
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", str(tmp_path))
    one, two = corpus.count(["a b a b"]), corpus.count(["a b", " a b"])
    assert one.tables["distance 1"].sum() == 3 and two.tables["distance 1"].sum() == 2


@pytest.mark.parametrize("kind", ["cut", "flipped", "foreign"])
def test_a_damaged_file_is_as_good_as_none(texts, tmp_path, kind, monkeypatch):
    first = corpus.count(texts, **WANTED)
    for path in (tmp_path / "cache" / "corpora").iterdir():
        content = bytearray(path.read_bytes())
        if kind == "cut":
            content = content[: len(content) // 2]
        elif kind == "flipped":
            content[len(content) // 2] ^= 1
        else:
            content = bytearray(b"something else")
        path.write_bytes(bytes(content))
    assert corpus.count(texts, **WANTED).equals(first)


class Killed(BaseException):
    pass


def test_a_killed_count_goes_on_from_its_checkpoint(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "CHECKPOINT", 0.0)
    monkeypatch.setattr(reading.blocks, "__defaults__", (None, 700))  # a block of about 700 characters
    expected = corpus.count(texts, cache=False, **WANTED)
    reads = Reads(monkeypatch)

    def kill(tokens: int, _: int) -> None:
        if tokens > 3000:
            raise Killed

    with pytest.raises(Killed):
        corpus.count(texts, told=kill, **WANTED)
    assert list((tmp_path / "cache" / "corpora").glob("*.partial.npz"))
    before = reads.blocks
    assert before >= 6
    found = corpus.count(texts, **WANTED)
    assert found.equals(expected)
    assert reads.blocks - before <= 12 - before + 2
    assert not list((tmp_path / "cache" / "corpora").glob("*.partial.npz"))


def test_the_cache_can_be_off_elsewhere_and_bounded(texts, tmp_path, monkeypatch):
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", "off")
    corpus.count(texts)
    assert not (tmp_path / "cache").exists()
    corpus.count(texts, cache=tmp_path / "own")
    kept = sorted((tmp_path / "own" / "corpora").iterdir())
    assert {path.suffix for path in kept} == {".json", ".npz"}
    monkeypatch.setattr(store, "LIMIT", 1)
    corpus.count(texts, vocabulary=2, cache=tmp_path / "own")
    assert len(list((tmp_path / "own" / "corpora").iterdir())) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="STAIRCASE_CACHE_DIR=off does without"):
        corpus.count(texts, cache=tmp_path / "file")


def test_a_full_disk_does_not_stop_a_count(texts, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.tempfile, "mkstemp", full)
    assert corpus.count(texts).tokens == 6000


def test_counts_written_on_several_machines_are_merged(texts, tmp_path, monkeypatch):
    whole_counts = corpus.count(texts, **WANTED)
    made = corpus.tokenizer(texts)
    halves = [[path.read_text() for path in sorted(texts.iterdir())[i::2]] for i in range(2)]
    for i, half in enumerate(halves):
        corpus.save_counts(corpus.count(half, made, **WANTED), tmp_path / "out" / f"{i}.npz")
    one, other = (corpus.load_counts(tmp_path / "out" / f"{i}.npz") for i in range(2))
    total = one + other
    assert total.equals(other + one) and total.equals(whole_counts)
    np.testing.assert_array_equal(total.prefix().array, whole_counts.prefix().array)
    assert one.sources == ("the list of documents",)


def test_a_file_that_holds_no_counts_is_told(texts, tmp_path, monkeypatch):
    path = tmp_path / "counts.npz"
    with pytest.raises(UserError, match="there is no file"):
        corpus.load_counts(path)
    corpus.save_counts(corpus.count(texts), path)
    content = path.read_bytes()
    np.savez(tmp_path / "other.npz", signature=np.eye(2))
    for damaged in (
        b"",
        b"text",
        content[:-40],
        content[:200] + bytes(200) + content[400:],
        (tmp_path / "other.npz").read_bytes(),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="counts.npz' holds no counts of a corpus, or is damaged"):
            corpus.load_counts(path)
    path.write_bytes(content)
    monkeypatch.setattr(store, "VERSION", 99)
    with pytest.raises(UserError, match="written in version 2 of the counts' format; this one is 99"):
        corpus.load_counts(path)
