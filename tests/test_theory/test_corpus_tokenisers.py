"""Tokenizers of a corpus: words, bytes, and those of the tokenizers library."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

from theory import corpus, data
from theory.corpus import tokenisers
from theory.corpus.tokenisers import Library, Words, tokenizer_of
from theory.data.text import words
from theory.errors import UserError

TEXTS = ["The cat sat on the mat.", "The dog sat; the cat ran away.", "日本語 🙂 naïve café"] * 5


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", "off")


@pytest.fixture
def library():
    return pytest.importorskip("tokenizers", reason="needs the package tokenizers")


def decoded(tokenizer, numbers) -> list[str]:
    return [tokenizer.names[i] for i in numbers]


def test_words_are_those_of_the_text_task(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXTS))
    made = corpus.tokenizer(path, "word", 5)
    assert made.names == data.load("text", path=str(path), vocabulary=5, length=4).token_names
    assert made.names[-1] == "<unk>"
    assert decoded(made, made.encode(["the CAT xylophone"])[0]) == ["the", "cat", "<unk>"]


def test_a_vocabulary_without_unknown_words_says_which_word_is_missing():
    made = corpus.tokenizer(["a b c"])
    assert made.names == ("a", "b", "c")
    with pytest.raises(UserError, match="the word 'd' is not among the 3 of the vocabulary, which has no <unk>"):
        corpus.count(["a d"], made)


def test_bytes_give_back_the_text():
    made = corpus.tokenizer(None, "byte")
    assert [bytes(part.tolist()).decode() for part in made.encode(TEXTS)] == TEXTS


def test_byte_pair_encoding_trained_on_the_spot(library):
    made = corpus.tokenizer(TEXTS, "bpe", 300)
    assert len(made.names) <= 300 and len(set(made.names)) == len(made.names)
    again = corpus.tokenizer(TEXTS, "bpe", 300)
    assert again.digest == made.digest and again.names == made.names
    loaded = library.Tokenizer.from_str(made.content)
    assert [loaded.decode(part.tolist()) for part in made.encode(TEXTS)] == TEXTS
    counts = corpus.count(TEXTS, made, distances=(1, 2))
    assert counts.names == made.names and counts.documents == 15
    with pytest.raises(UserError, match="begins with 256 bytes, so its vocabulary cannot be 255"):
        corpus.tokenizer(TEXTS, "bpe", 255)


def test_what_goes_on_without_a_break_is_learned_from_in_part(library):
    rng = np.random.default_rng(0)
    giant = "".join(rng.choice(list("abcdefgh"), 300_000))
    assert corpus.tokenizer([giant], "bpe", 400).digest == corpus.tokenizer([giant[:256]], "bpe", 400).digest
    counts = corpus.count([giant, "🙂" * 5000], "bpe", vocabulary=300)
    assert counts.documents == 2 and counts.tokens > 1000


def test_any_tokenizer_of_the_library(library, tmp_path):
    from tokenizers import models, pre_tokenizers

    made = library.Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "cat": 3}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.enable_padding(length=2)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    loaded = tokenizer_of(path)
    assert loaded.names == ("<unk>", "the", "<unused 2>", "cat")
    # Neither cut off nor padded, whatever the file says.
    assert [part.tolist() for part in loaded.encode(["the cat the cat", "the"])] == [[1, 3, 1, 3], [1]]
    assert tokenizer_of(made).digest == loaded.digest
    backed = type("Fast", (), {"backend_tokenizer": made})()
    assert tokenizer_of(backed).digest == loaded.digest
    padded = tokenizer_of(str(path), 7)
    assert padded.names[4:] == ("<unused 4>", "<unused 5>", "<unused 6>") and padded.digest != loaded.digest
    with pytest.raises(
        UserError, match="a vocabulary of 3 does not match tokenizer .*tokenizer.json', which has 4 tokens"
    ):
        tokenizer_of(path, 3)
    sent = pickle.loads(pickle.dumps(padded))
    assert sent == padded and np.array_equal(sent.encode(["the cat"])[0], [1, 3])
    counts = corpus.count(["the cat the", "cat"], path)
    assert counts.next_token().missing == ("<unk>", "<unused 2>")


def test_a_file_that_is_no_tokenizer(library, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match="config.json' is no tokenizer of tokenizers"):
        tokenizer_of(path)
    with pytest.raises(UserError, match="there is no tokenizer 'words'; did you mean 'word'"):
        tokenizer_of("words")
    with pytest.raises(UserError, match="there is no file"):
        tokenizer_of("missing.json")
    with pytest.raises(UserError, match="a tokenizer is word, byte, bpe, a file or an object"):
        tokenizer_of(3)


def test_a_file_of_words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("the\ncat\n\n<unk>\n")
    made = tokenizer_of(path)
    assert made == Words(("the", "cat", "<unk>")) and made.encode(["the dog"])[0].tolist() == [0, 2]
    path.write_text("the\ncat\nthe\n")
    with pytest.raises(UserError, match="words.txt, line 3: 'the' stands in line 1 already"):
        tokenizer_of(path)


def test_a_vocabulary_that_does_not_match(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("der\nHund\n<unk>\n")
    with pytest.raises(UserError, match="the vocabulary does not match corpus .*: every word of it is <unk>"):
        corpus.count(["the cat sat"], path)
    with pytest.raises(UserError, match="a vocabulary of 300 does not match tokenizer 'byte', which has 256 tokens"):
        corpus.count(["the cat sat"], "byte", vocabulary=300)
    for size in (0, True, 2.5, 1 << 30):
        with pytest.raises(UserError, match="vocabulary= must be an integer in 1"):
            corpus.tokenizer(["a b"], "word", size)
    with pytest.raises(UserError, match="the vocabulary has no token 'catt'; did you mean 'cat'"):
        corpus.count(["the cat sat"], prefix_set=["catt"])
    with pytest.raises(UserError, match="token number 9 does not match the vocabulary"):
        corpus.count(["the cat sat"], prefix_set=[9])


def test_more_different_words_than_fit_are_refused(monkeypatch):
    monkeypatch.setattr(tokenisers, "MOST_WORDS", 500)
    texts = [" ".join(f"w{chr(97 + i)}{chr(97 + j)}" for i in range(26)) for j in range(26)]
    with pytest.raises(
        UserError, match="more than 500 different words, too many to count in memory; use tokenizer='byte'"
    ):
        corpus.count(texts)


def test_encoded_data_does_not_make_giant_words():
    found = words("a" * 1000 + " " + "7" * 600 + " " + "b'" * 50)
    assert max(map(len, found)) <= 9 * 257 and "".join(found[:4]) == "a" * 1000


def test_counts_of_words_in_a_corpus_are_those_of_its_text():
    counts = corpus.count(vocabulary=50)
    stream = words("\n".join(data.shipped.shipped_topics().values()))
    assert counts.tokens == len(stream)
    # Each document's last token begins no pair.
    the = counts.names.index("the")
    assert stream.count("the") - 79 <= counts.tables["distance 1"].sum(axis=1)[the] <= stream.count("the")


def test_without_the_library_a_sentence_names_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(UserError, match="needs the package tokenizers: pip install tokenizers; tokenizer='word'"):
        corpus.tokenizer(TEXTS, "bpe", 300)
    with pytest.raises(UserError, match="needs the package tokenizers"):
        Library("{}", "x", 3).names  # noqa: B018
