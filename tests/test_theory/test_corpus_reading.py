"""Reading corpora: formats, cursors, and hostile ones, each told in one sentence or read in bounded memory."""

from __future__ import annotations

import gzip
import json
import os
import stat
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from theory import corpus
from theory.corpus import documents, opening, streams
from theory.corpus.counting import Counting, Request
from theory.corpus.counts import Counts
from theory.corpus.documents import PIECE
from theory.corpus.reading import blocks
from theory.corpus.tokenisers import Bytes
from theory.errors import UserError


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", "off")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder with a document in every format; 'a b' occurs in each."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "one.txt").write_text("a b c")
    (tmp_path / "sub" / "two.md").write_text("c a b")
    (tmp_path / "three.jsonl").write_text('{"text": "a b"}\n\n{"text": "b a b", "other": 1}\n')
    (tmp_path / "four.txt.gz").write_bytes(gzip.compress(b"a b") + gzip.compress(b" d"))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
    (tmp_path / ".hidden.txt").write_text("a b")
    return tmp_path


def zstandard():
    return pytest.importorskip("zstandard", reason="Zstandard files need the package zstandard")


def told(call, *parts: str) -> str:
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert "\n" not in message and len(message) < 400
    return message


def test_every_format_in_a_folder_is_read_and_documents_are_kept_apart(folder):
    library = zstandard()
    packer = library.ZstdCompressor()
    (folder / "five.jsonl.zst").write_bytes(packer.compress(b'{"text": "a b"}\n') + packer.compress(b'{"text": "e"}'))
    opened = corpus.open_corpus(folder)
    assert [Path(name).name for name in opened.passed_over] == ["picture.png"]
    texts = [piece.text for piece, _ in opened.pieces()]
    assert texts == ["a b", "e", "a b d", "a b c", "c a b", "a b", "b a b"]
    counts = corpus.count(folder)
    assert counts.documents == 7 and counts.tokens == 17
    row = counts.next_token()["a"]
    assert row[counts.names.index("b")] == 1.0  # never the first word of another document
    assert counts.tables["distance 1"].sum() == 17 - 7


def test_a_line_can_be_a_document(tmp_path):
    (tmp_path / "lines.txt").write_text("a b\r\n\nc d\ne f")
    counts = corpus.count(tmp_path / "lines.txt", documents="line")
    assert counts.documents == 3 and counts.tables["distance 1"].sum() == 3
    assert corpus.count(tmp_path / "lines.txt").documents == 1
    told(lambda: corpus.open_corpus(tmp_path, documents="lines"), "documents cannot be 'lines'", "'line'")


def test_rows_in_python(tmp_path):
    rows = [{"text": "a b"}, {"text": "b a b"}]
    counts = corpus.count(rows)
    assert counts.documents == 2 and counts.equals(corpus.count(["a b", "b a b"]))
    assert corpus.count([{"body": "a b"}], field="body").tokens == 2
    told(lambda: corpus.count([{"body": "a b"}]), "row 0 (counted from 0)", "no key 'text'", "body")
    told(lambda: corpus.count(iter(["a b"])), "can be read only once")
    told(lambda: corpus.count({"train": rows}), "several splits", "train")
    told(lambda: corpus.count(3), "a corpus is a path, a collection of texts or a data set, found 3")
    told(lambda: corpus.count(["a b", 3]), "row 1", "found 3")
    told(lambda: corpus.count(["a \ud800"]), "row 0", "half a character")


def test_hugging_face_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets", reason="Hugging Face data sets need the package datasets")
    rows = datasets.Dataset.from_dict({"text": ["a b", "b a b"]})
    expected = corpus.count(["a b", "b a b"])
    assert corpus.count(rows).equals(expected)
    rows.save_to_disk(str(tmp_path / "saved"))
    assert corpus.count(tmp_path / "saved").equals(expected)
    assert corpus.count(rows.to_iterable_dataset()).equals(expected)
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "splits"))
    told(lambda: corpus.count(tmp_path / "splits"), "several splits", "splits/train")
    assert corpus.count(tmp_path / "splits" / "train").equals(expected)


def test_a_saved_data_set_without_the_library_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    (tmp_path / "state.json").write_text("{}")
    told(lambda: corpus.open_corpus(tmp_path), "saved by Hugging Face's datasets", "pip install datasets")


def test_the_default_is_what_cpython_ships():
    counts = corpus.count()
    assert counts.documents > 50 and 50_000 < counts.tokens < 1_000_000
    assert counts.names[-1] == "<unk>" and len(counts.names) == 1001 and "the" in counts.names[:3]


def long_text(seed: int) -> str:
    rng = np.random.default_rng(seed)
    words = ["Straße", "a", "b'c", "naïve", "—", "日本語", "🙂", "x" * 70]
    spaces = [" ", " ", "\n", "  ", "\n\n", "\t"]
    picks, gaps = rng.integers(0, len(words), 60_000), rng.integers(0, len(spaces), 60_000)
    return "".join(words[i] + spaces[j] for i, j in zip(picks, gaps, strict=True))


@pytest.mark.parametrize("name", ["long.txt", "long.txt.gz", "long.jsonl", "long.txt.zst"])
def test_reading_goes_on_from_every_cursor_as_straight_through(tmp_path, name, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 1 << 16)
    monkeypatch.setattr(documents, "_SEARCHED", 1 << 12)
    texts = [long_text(0)[:200_000], "", "a b", long_text(1)[:150_000]]
    if name.endswith("jsonl"):
        content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    else:
        content = "\n".join(texts).encode()
    packed = {".gz": gzip.compress, ".zst": lambda x: zstandard().ZstdCompressor().compress(x)}
    path = tmp_path / name
    path.write_bytes(packed.get(path.suffix, lambda x: x)(content))
    opened = corpus.open_corpus(path)
    made = corpus.tokenizer(opened, "word", 6)
    request = Request(distances=(1, 3), length=5, past=True, chosen=(0,))
    straight = list(blocks(opened, made, size=1))
    assert len(straight) > 2

    def counts(counting: Counting) -> Counts:
        return Counts.of(counting.progress(), made.names, made.digest, request, "test")

    whole = Counting(len(made.names), request)
    for block in blocks(opened, made):
        whole.add(block.ids, block.starts)
    assert whole.documents == (4 if name.endswith("jsonl") else 1)
    first = Counting(len(made.names), request)
    for block in straight:
        first.add(block.ids, block.starts)
        second = Counting(len(made.names), request, first.progress())
        for rest in blocks(opened, made, block.after, size=100_000):
            second.add(rest.ids, rest.starts)
        assert counts(second).equals(counts(whole))


def test_pieces_of_a_long_document_split_no_word(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "PIECE", 5000)
    monkeypatch.setattr(documents, "_SEARCHED", 500)
    text = long_text(2)[:300_000]
    (tmp_path / "long.txt").write_text(text)
    opened = corpus.open_corpus(tmp_path / "long.txt")
    pieces = [piece for piece, _ in opened.pieces()]
    assert "".join(piece.text for piece in pieces) == text and len(pieces) > 50
    assert [piece.first for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    for kind, size in (("word", 1000), ("byte", 256), ("bpe", 400)):
        if kind == "bpe":
            pytest.importorskip("tokenizers", reason="needs the package tokenizers")
        made = corpus.tokenizer(opened, kind, size)
        (ids,) = made.encode([text])  # the whole at once
        expected = corpus.count_ids(ids, len(made.names), request=corpus.Request(distances=(1, 2)))
        found = corpus.count(opened, made, distances=(1, 2))
        assert found.tokens == len(ids)
        for name, table in expected.tables.items():
            assert (found.tables[name] != table).nnz == 0


@pytest.mark.parametrize("kind", ["text", "json"])
def test_shards_are_whole_documents_and_together_the_corpus(tmp_path, kind):
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(list("abcde"), n)) for n in rng.integers(0, 4000, 60)]
    if kind == "json":
        (tmp_path / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) * 8)
    else:
        for i, text in enumerate(texts):
            (tmp_path / f"{i:03}.txt").write_text(text)
    opened = corpus.open_corpus(tmp_path)
    made = corpus.tokenizer(opened)
    whole = corpus.count(opened, made)
    for size in (1, 30_000, 1 << 30):
        shards = opened.shards(size)
        parts = [corpus.whole._read_part(shard, made, whole.request) for shard in shards]
        counts = [Counts.of(part, made.names, made.digest, whole.request, whole.sources[0]) for part in parts]
        total = sum(counts[1:], counts[0])
        assert total.equals(whole)
    assert len(opened.shards(1)) > 1 and len(opened.shards(1 << 30)) == 1


# ---- hostile corpora


def test_a_single_giant_line(tmp_path):
    path = tmp_path / "line.txt"
    with open(path, "w") as file:
        for _ in range(40):
            file.write("word other " * 50_000)  # 22 MB without a line break
    tracemalloc.start()
    counts = corpus.count(path, "byte")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts.tokens == 22_000_000
    # Blocks of 4 MiB of text and buffers of fixed size, whatever the length of the line.
    assert peak < 200 << 20


def test_a_giant_word_is_cut_between_characters(tmp_path):
    path = tmp_path / "word.txt"
    path.write_text("é" * (PIECE + 17) + "日" * PIECE)
    pieces = [piece.text for piece, _ in corpus.open_corpus(path).pieces()]
    assert "".join(pieces) == path.read_text() and max(len(piece.encode()) for piece in pieces) <= PIECE


def test_nul_bytes_are_told_with_their_line(tmp_path):
    path = tmp_path / "nul.txt"
    path.write_bytes(b"one\ntwo\nth\0ree\n")
    told(lambda: corpus.count(path), "is not a text file: NUL byte at byte offset 10, line 3", "nul.txt")


@pytest.mark.parametrize("cache", ["off", "on"])
def test_four_gigabytes_of_zeros_are_refused_at_once(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", "off" if cache == "off" else str(tmp_path / "cache"))
    path = tmp_path / "zeros.txt"
    with open(path, "wb") as file:
        file.truncate(4 << 30)
    tracemalloc.start()
    told(lambda: corpus.count(path), "is not a text file: NUL byte at byte offset 0, line 1")
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_zeros_do_not_fill_memory(tmp_path, kind):
    path = tmp_path / f"zeros.txt.{kind}"
    zeros = bytes(1 << 28)
    path.write_bytes(gzip.compress(zeros, 6) if kind == "gz" else zstandard().ZstdCompressor().compress(zeros))
    del zeros
    tracemalloc.start()
    told(lambda: corpus.count(path), "is not a text file: NUL byte at byte offset 0, line 1")
    assert tracemalloc.get_traced_memory()[1] < 150 << 20
    tracemalloc.stop()


def test_an_undecodable_byte_is_told_with_its_line_however_far_it_stands(tmp_path):
    path = tmp_path / "latin.txt"
    start = "line é\n" * 400_000
    path.write_bytes(start.encode() + b"caf\xe9 au lait\n")
    offset = len(start.encode()) + 3
    told(
        lambda: corpus.count(path),
        f"is not UTF-8: byte 0xe9 at byte offset {offset}, line 400001",
        "latin.txt",
    )


def test_mixed_encodings(tmp_path):
    (tmp_path / "a.txt").write_text("plain text")
    (tmp_path / "b.txt").write_bytes("ein Stück".encode("latin-1"))
    told(lambda: corpus.count(tmp_path), "b.txt", "is not UTF-8: byte 0xfc at byte offset 6, line 1")
    (tmp_path / "b.txt").write_bytes("ein Stück".encode("utf-16"))
    told(lambda: corpus.count(tmp_path), "b.txt", "is UTF-16, not UTF-8: its byte order mark", "line 1")
    (tmp_path / "b.txt").write_bytes("ein Stück".encode("utf-8-sig"))
    assert corpus.count(tmp_path).names[0] in ("ein", "plain", "stück", "text")


def test_emoji_only(tmp_path):
    path = tmp_path / "emoji.txt"
    path.write_text("🙂🙃🙂🙃👩‍👩‍👧" * 10)
    counts = corpus.count(path)
    assert counts.next_token()["🙂"][counts.names.index("🙃")] == 1.0
    assert corpus.count(path, "byte").tokens == len(path.read_bytes())


def test_one_token_repeated(tmp_path):
    path = tmp_path / "same.txt"
    path.write_text("the " * 300_000)
    counts = corpus.count(path, past=True, moments=True, distances=(1, 7), prefix_set=["the"])
    assert counts.names == ("the",) and counts.tokens == 300_000
    assert counts.next_token().array.tolist() == counts.prefix().array.tolist() == [[1.0]]
    moments = counts.moments()
    assert moments.P.toarray() == moments.M.toarray() == moments.Q.toarray() == [[1.0]]


def test_an_empty_file_in_a_folder_is_left_out_and_named(folder):
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text(" \n\n")
    opened = corpus.open_corpus(folder)
    assert [Path(name).name for name in opened.empty] == ["empty.txt"]
    assert corpus.count(opened).documents == 6  # a blank file is a document without tokens


def test_empty_corpora(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("")
    told(lambda: corpus.count(path), "'", "empty.txt' is empty")
    told(lambda: corpus.count(tmp_path), "holds only empty text files", "empty.txt")
    path.write_text(" \n \n")
    told(lambda: corpus.count(path), "holds no word")
    told(lambda: corpus.count([], "byte"), "holds no text")
    path.write_text("word")
    told(lambda: corpus.count(path), "holds no document with two tokens")
    told(lambda: corpus.count(tmp_path / "missing.txt"), "there is no file", "missing.txt")
    told(lambda: corpus.count("bad\0name"), "cannot read")


def test_a_folder_without_text_files(tmp_path):
    told(lambda: corpus.count(tmp_path), "holds no text file (.txt, .text, .md, .rst, .jsonl, .ndjson")
    (tmp_path / "data.csv").write_text("a,b")
    told(lambda: corpus.count(tmp_path), "holds no text file", "data.csv', which can be named itself")


def test_a_loop_of_links_is_read_once(folder):
    (folder / "sub" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "again.txt").symlink_to(folder / "one.txt")
    (folder / "self").symlink_to(folder / "self")
    assert corpus.count(folder).documents == 5
    (folder / "broken.txt").symlink_to(folder / "nothing")
    told(lambda: corpus.count(folder), "broken.txt' is a link to nothing")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are Unix's")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    told(lambda: corpus.count(tmp_path / "pipe.txt"), "is neither a file nor a folder")
    told(lambda: corpus.count(tmp_path), "pipe.txt' is neither a file nor a folder")


def test_an_unreadable_file(folder, monkeypatch):
    locked = folder / "sub" / "two.md"
    if os.geteuid():
        locked.chmod(stat.S_IWUSR)
    else:  # the superuser may read everything
        real = open

        def refuse(path, *arguments, **options):
            if path == locked:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *arguments, **options)

        monkeypatch.setattr(streams, "open", refuse, raising=False)
    told(lambda: corpus.count(folder), "cannot read", "two.md", "Permission denied")


def test_json_lines_with_a_broken_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    good = '{"text": "a b"}\n'
    for line, *parts in (
        ('{"text": "a b"', "not valid JSON"),
        ('["a"]', 'expected {"text": "…"}'),
        ('{"txet": "a"}', "there is no key 'text'; did you mean 'txet'?"),
        ('{"text": 3}', "the value of 'text' must be a text, found 3"),
        ('{"text": "\\ud800"}', "half a character, \\ud800"),
        ("[" * 100_000, "not valid JSON"),
        ('{"text": "a\0"}', "NUL byte"),
    ):
        path.write_text(good * 3 + "\n" + line + "\n" + good)
        told(lambda: corpus.count(path), "rows.jsonl", "line 5", *parts)
    # In a later part of a long file the line is still the file's.
    path.write_text(good * 200_000 + "{\n")
    told(lambda: list(corpus.open_corpus(path).shards(1)[-1].texts()), "line 200001", "not valid JSON")


def test_a_giant_line_of_json_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST_LINE", 3 << 20)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a b"}\n{"text": "' + "a " * (3 << 20))
    told(lambda: corpus.count(path), "line 2: the line is longer than 3 MiB")


@pytest.mark.parametrize("kind", ["gzip", "Zstandard"])
def test_compressed_files_cut_off_or_damaged(tmp_path, kind):
    text = long_text(5)[:400_000].encode()
    packed = gzip.compress(text) if kind == "gzip" else zstandard().ZstdCompressor().compress(text)
    path = tmp_path / "text.txt.x"
    path.write_bytes(packed[: len(packed) // 2])
    told(lambda: corpus.count(path), "text.txt.x' is cut off", f"its {kind} data end after", "without their end mark")
    broken = bytearray(packed)
    broken[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    path.write_bytes(bytes(broken))
    told(lambda: corpus.count(path, "byte"), "text.txt.x'", "")
    path.write_bytes(packed)
    assert corpus.count(path, "byte").tokens == len(text)


def test_a_file_that_changes_while_it_is_read(folder):
    opened = corpus.open_corpus(folder)
    (folder / "one.txt").write_text("quite another text")
    told(lambda: corpus.count(opened), "one.txt' has changed since the corpus was opened")


def test_deep_folders(tmp_path):
    deep = tmp_path
    for _ in range(200):
        deep = deep / "d"
        deep.mkdir()
    (deep / "text.txt").write_text("a b")
    assert corpus.count(tmp_path).tokens == 2


def test_the_order_of_a_folder_is_that_of_paths(tmp_path):
    for name in ("b.txt", "a.txt", "c/a.txt", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    names = [source.name for source in corpus.open_corpus(tmp_path).sources]
    assert names == [str(tmp_path / name) for name in ("a.txt", "b.txt", "c/a.txt", "c.txt")]


def test_bytes_are_those_of_the_text(tmp_path):
    assert Bytes().encode(["aé"])[0].tolist() == [97, 195, 169]
    assert Bytes().names[97] == "a" and Bytes().names[32] == "<0x20>" and len(set(Bytes().names)) == 256
    assert opening._suffix(Path("x.TXT.GZ")) == ".txt" and opening._suffix(Path("none")) == ""
