"""Ten hostile corpora on the command line: each is counted, or refused in one sentence that names file and line."""

from __future__ import annotations

import gzip
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from theory.cli import main


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "good.txt").write_text("the cat sat on the mat\n")
    return folder


def counted(capfd, options: str = "") -> dict:
    assert main(f"signatures --corpus texts --format json {options}".split()) == 0
    out, err = capfd.readouterr()
    assert err == ""
    return json.loads(out)


def refused(capfd, *parts: str, options: str = "") -> None:
    assert main(f"signatures --corpus texts {options}".split()) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and len(err) < 300, err
    for part in parts:
        assert part in err, err


def row(found: dict, token: str) -> dict[str, float]:
    """The probabilities of a token, by name, without the zeros."""
    first, last = found["dims"]
    names, values = found["coords"][last]["data"], found["data"][found["coords"][first]["data"].index(token)]
    return {name: value for name, value in zip(names, values, strict=True) if value}


def test_1_a_giant_line(capfd, texts):
    with open(texts / "good.txt", "w") as file:
        for _ in range(20):
            file.write("cat mat " * 50_000)  # 8 MB without a line break
    found = counted(capfd)
    assert row(found, "cat") == {"mat": 1.0} and row(found, "mat") == {"cat": 1.0}


def test_2_nul_bytes(capfd, texts):
    (texts / "nul.txt").write_bytes(b"one\ntwo\nth\0ree\n")
    refused(capfd, "texts/nul.txt' is not a text file: NUL byte at byte offset 10, line 3")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("ein\nStück".encode("latin-1"), "is not UTF-8: byte 0xfc at byte offset 6, line 2"),
        ("ein Stück".encode("utf-16"), "is UTF-16, not UTF-8: its byte order mark at byte offset 0, line 1"),
        (b"good \xf0\x9f\x99", "is not UTF-8: byte 0xf0 at byte offset 5, line 1"),  # cut off within a character
    ],
)
def test_3_mixed_encodings(capfd, texts, content, part):
    (texts / "other.txt").write_bytes(content)
    refused(capfd, "texts/other.txt' ", part)


@pytest.mark.parametrize("tokenizer", ["word", "byte", "bpe"])
def test_4_nothing_but_emoji(capfd, texts, tokenizer):
    if tokenizer == "bpe":
        pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    (texts / "good.txt").write_text("🙂🙃" * 40 + "👩‍👩‍👧🇪🇺")
    found = counted(capfd, f"--tokenizer {tokenizer}" + (" --vocabulary 260" if tokenizer == "bpe" else ""))
    if tokenizer == "word":
        assert row(found, "🙂") == {"🙃": 1.0}
    assert all(sum(values) == pytest.approx(1.0) for values in found["data"] if any(values))


@pytest.mark.parametrize("kind", ["next-token", "previous-token", "prefix", "prefix-set --token the"])
def test_5_one_token_repeated(capfd, texts, kind):
    (texts / "good.txt").write_text("the " * 100_000)
    found = counted(capfd, f"--kind {kind}")
    if kind.startswith("prefix-set"):  # the first of the 32 positions of a window has no prefix
        assert found["data"][0][0][0] == pytest.approx(31 / 32, abs=1e-5)
    else:
        assert found["data"] == [[1.0]]


def test_6_an_empty_file_in_a_folder(capfd, texts):
    (texts / "empty.txt").write_text("")
    assert row(counted(capfd), "cat") == {"sat": 1.0}
    (texts / "good.txt").unlink()
    refused(capfd, "folder 'texts' holds only empty text files, e.g. 'texts/empty.txt'")


@pytest.mark.skipif(sys.platform == "win32", reason="sparse files and resource limits are Unix's")
def test_7_four_gigabytes_of_zeros(capfd, texts):
    with open(texts / "zeros.txt", "wb") as file:
        file.truncate(4 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(capfd, "texts/zeros.txt' is not a text file: NUL byte at byte offset 0, line 1")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # kilobytes


def test_8_compressed_and_cut_off(capfd, texts):
    packed = gzip.compress(b"the cat sat on the mat. " * 5 + bytes(range(97, 123)) * 9, 0)
    (texts / "cut.txt.gz").write_bytes(packed[:-30])
    refused(capfd, "texts/cut.txt.gz' is cut off", "its gzip data end after", "without their end mark")
    (texts / "cut.txt.gz").write_bytes(b"no gzip at all\n")
    assert row(counted(capfd), "gzip") == {"at": 1.0}  # what a file is, its content tells


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"text": "a b"', "not valid JSON"),
        ('{"txet": "a b"}', "there is no key 'text'; did you mean 'txet'?"),
        ('{"text": null}', "the value of 'text' must be a text, found None"),
    ],
)
def test_9_a_broken_line_of_json(capfd, texts, line, part):
    (texts / "rows.jsonl").write_text('{"text": "a b"}\n' * 3 + "\n" + line + "\n")
    refused(capfd, "texts/rows.jsonl, line 5: ", part)


def test_10_a_vocabulary_that_does_not_match(capfd, texts, tmp_path):
    (tmp_path / "words.txt").write_text("the\ncat\nsat\non\n")
    (texts / "good.txt").write_text("the cat sat\non the cat\non the mat\n")
    refused(
        capfd,
        "texts/good.txt, line 3: the word 'mat' is not among the 4 of the vocabulary, which has no <unk> for others",
        options="--tokenizer words.txt",
    )
    (texts / "rows.jsonl").write_text('{"text": "the cat"}\n{"text": "the dog"}\n')
    (texts / "good.txt").unlink()
    refused(capfd, "texts/rows.jsonl, line 2: the word 'dog' is not among", options="--tokenizer words.txt")
    refused(
        capfd,
        "a vocabulary of 9 does not match tokenizer 'word (4 words)', which has 4 tokens; leave --vocabulary out.",
        options="--tokenizer words.txt --vocabulary 9",
    )


def test_each_source_of_trouble_is_told_alone(capfd, texts):
    """The first in the order of paths is named, whatever else is wrong."""
    trouble: dict[str, Callable[[Path], object]] = {
        "a.txt": lambda path: path.write_bytes(b"\xff"),
        "b.jsonl": lambda path: path.write_text("{"),
    }
    for name, make in trouble.items():
        make(texts / name)
    refused(capfd, "texts/a.txt' is not UTF-8: byte 0xff at byte offset 0, line 1")
