"""`staircase signatures --corpus`, and the example."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from theory import corpus
from theory.cli import main

TEXT = "the cat sat on the mat .\nthe dog sat .\n"
EXAMPLE = Path(__file__).parents[2] / "examples" / "corpus_signatures.py"


@pytest.fixture(autouse=True)
def text(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    path = tmp_path / "texts" / "cats.txt"
    path.write_text(TEXT)
    return path


def run(line: str) -> int:
    return main(line.split())


def test_a_table_of_next_tokens(capfd):
    assert run("signatures --corpus texts --token the") == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[0] == "next-token signature of order 0, modes (label)"
    assert out.splitlines()[2].split() == "the 0.3000 cat: 0.3333 dog: 0.3333 mat: 0.3333".split()
    assert err == ""
    assert run("signatures --corpus texts --token the --documents line --kind previous-token") == 0
    assert capfd.readouterr().out.splitlines()[2].split() == "the 0.1111 on: 1.0000".split()


def test_every_kind(capfd, text):
    counts = corpus.count(text, vocabulary=6, length=4, distances=(1, 2), past=True, prefix_set=["sat"])
    for words, expected in (
        ("", counts.next_token()),
        ("--kind previous-token", counts.previous_token()),
        ("--kind skip-gram --distance 2", counts.skip_gram(2)),
        ("--kind prefix", counts.prefix()),
        ("--kind prefix --weighting pair", counts.prefix("pair")),
        ("--kind prefix-set --token sat", counts.prefix_set()),
    ):
        assert run(f"signatures --corpus texts/cats.txt --vocabulary 6 --length 4 --format json {words}") == 0
        found = json.loads(capfd.readouterr().out)
        assert found["name"] == f"{expected.kind} signature"
        np.testing.assert_array_equal(np.array(found["data"]), expected.array)


def test_a_sparse_file_is_one_of_scipy(tmp_path, text):
    assert run("signatures --corpus texts --format npz -o out/next.npz") == 0
    expected = corpus.count(text).next_token()
    loaded = scipy.sparse.load_npz(tmp_path / "out" / "next.npz")
    assert np.array_equal(loaded.toarray(), expected.array)
    with np.load(tmp_path / "out" / "next.npz", allow_pickle=False) as arrays:
        assert tuple(arrays["tokens"]) == expected.tokens and tuple(arrays["label"]) == expected.mode_names[0]
        np.testing.assert_array_equal(arrays["probability"], expected.probability)


def test_json_lines_with_a_field_and_a_tokenizer(capfd, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"body": "ab"}\n{"body": "abb ab"}\n')
    assert run("signatures --corpus rows.jsonl --field body --tokenizer byte --token a") == 0
    assert "b: 1.0000" in capfd.readouterr().out
    pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    assert run("signatures --corpus rows.jsonl --field body --tokenizer bpe --vocabulary 300") == 0
    assert "next-token" in capfd.readouterr().out


def test_over_a_cluster(capfd):
    distributed = pytest.importorskip("distributed", reason="clusters need the package distributed")
    assert run("signatures --corpus texts --kind prefix") == 0
    expected = capfd.readouterr().out
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as local:
        address = local.scheduler.address
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STAIRCASE_CACHE_DIR", "off")
            assert run(f"signatures --corpus texts --kind prefix --scheduler {address}") == 0
    assert capfd.readouterr().out == expected


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("signatures", "signatures are those of a TASK or of a --corpus PATH; give one of them."),
        ("signatures add --corpus texts", "give one of them."),
        ("signatures add --tokenizer word", "--tokenizer is a corpus's; a TASK takes none."),
        ("signatures add --kind prefix", "--kind prefix is a corpus's; of a TASK choose label or co-occurrence."),
        ("signatures --corpus texts --kind label", "a corpus has no signature of kind 'label'; "),
        (
            "signatures --corpus texts --order 1",
            "--order is a task's; the order of a corpus's signature follows from its",
        ),
        ("signatures --corpus texts --kind prefix-set", "kind prefix-set needs the tokens that are wanted: --token …"),
        ("signatures --corpus texts --token teh", "there is no token 'teh'; did you mean 'the'?"),
        ("signatures --corpus text", "there is no file 'text'."),
        ("signatures --corpus texts --tokenizer words", "there is no tokenizer 'words'; did you mean 'word'?"),
        ("signatures --corpus texts --vocabulary 0", "--vocabulary must be an integer in 1"),
        ("signatures --corpus texts --tokenizer byte --vocabulary 9", "which has 256 tokens; leave --vocabulary out."),
        ("signatures --corpus texts --kind skip-gram --distance 0", "a distance must be an integer in 1"),
        ("signatures --corpus texts --kind prefix --length 0", "--length must be an integer in 1"),
        (
            "signatures --corpus texts --kind skip-gram --distance 99",
            "the documents of 'texts' are too short for a skip-gram 99",
        ),
        ("signatures --corpus broken.txt", "'broken.txt' is not UTF-8: byte 0xe9 at byte offset 7, line 2."),
        ("signatures --corpus texts --scheduler nowhere", "no Dask scheduler answers at 'nowhere'"),
    ],
)
def test_mistakes_are_told_in_one_sentence(line, part, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr("theory.corpus.cluster.PATIENCE", 0.5)
    (tmp_path / "broken.txt").write_bytes(b"a b\ncaf\xe9")
    assert run(line) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and part in err, err


def test_the_example_runs(capfd, monkeypatch):
    spec = importlib.util.spec_from_file_location("corpus_signatures", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    out = capfd.readouterr().out
    assert "documents=79" in out or "documents=" in out
    assert "most alike" in out and "kappa 0.12" in out
