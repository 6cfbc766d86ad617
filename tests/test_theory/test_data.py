"""Datasets: what the tasks promise, what files may hold, and what is refused with which words."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theory import data
from theory.data import Dataset, from_sequences, options
from theory.data.text import words
from theory.errors import UserError


def test_dataset_fields_and_sizes():
    task = Dataset([[0, 1], [2, 1]], [1, 0], [0.25, 0.75], n_labels=4)
    assert task.sizes == {"token": 3, "label": 4, "position": 2}
    assert (task.n_samples, task.length, task.labels_per_position) == (2, 2, False)
    assert task.token_names == ("0", "1", "2") and task.label_names == ("0", "1", "2", "3")
    assert task.tokens.dtype == np.int64 and task.weights.dtype == np.float64
    assert "samples=2" in repr(task) and "per sequence" in repr(task)
    assert Dataset([[0, 1]], [[1, 0]]).labels_per_position


def test_arrays_are_copied_and_read_only():
    tokens = np.array([[0, 1], [1, 1]])
    task = Dataset(tokens, [0, 1])
    tokens[0, 0] = 9
    assert task.tokens[0, 0] == 0
    for array in (task.tokens, task.labels, task.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        task.name = "other"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": [[0, 1], [5, 1]]}, r"0 … 2 \(n_tokens = 3\), but token 5 stands at sample 1, pos"),
        ({"tokens": [[0, -1], [0, 1]]}, r"token -1 stands at sample 0, position 1"),
        ({"labels": [0, 9]}, r"label 9 stands at sample 1 \("),
        ({"tokens": [0, 1]}, r"axes \(sample, position\).* shape is \(2,\)"),
        ({"tokens": np.zeros((0, 2), int)}, r"at least 1 long"),
        ({"labels": [0]}, r"labels must have the shape \(2,\).* shape is \(1,\)"),
        ({"tokens": [[0.0, 1.0], [0.0, 1.0]]}, "tokens must be integers, found dtype float64"),
        ({"labels": [True, False]}, "labels must be integers, found dtype bool"),
        ({"weights": [0.5, 0.6]}, r"must sum to 1, but they sum to 1\.1"),
        ({"weights": [1.5, -0.5]}, r"≥ 0, but weight 1 is -0\.5"),
        ({"weights": [float("nan"), 1.0]}, "weight 0 is nan"),
        ({"weights": [1.0]}, r"shape \(2,\), one per sequence"),
        ({"weights": [[0.5], [0.5]]}, r"one axis \(sample\)"),
        ({"weights": ["a", "b"]}, "one number per sequence"),
        ({"n_tokens": 0}, "n_tokens must be an integer ≥ 1, found 0"),
        ({"n_labels": 2.0}, "n_labels must be an integer ≥ 1, found 2.0"),
        ({"token_names": ("a", "b")}, "token_names has 2 names, but n_tokens is 3"),
        ({"token_names": ("a", "b", "a")}, "'a' occurs more than once"),
    ],
)  # fmt: skip
def test_dataset_refuses(fields, message):
    good = {"tokens": [[0, 1], [2, 1]], "labels": [0, 1], "n_tokens": 3, "n_labels": 2}
    Dataset(**good)
    with pytest.raises(UserError, match=message):
        Dataset(**(good | fields))


def test_from_sequences_normalises_and_builds_vocabularies():
    task = from_sequences([["b", "a"], ["b", "b"]], [10, 9], [3, 1], n_labels=11)
    assert task.token_names == ("a", "b")
    assert task.tokens.tolist() == [[1, 0], [1, 1]] and task.labels.tolist() == [10, 9]
    assert task.weights.tolist() == [0.75, 0.25]
    task = from_sequences([["10", "9"], ["x", "-1"]], ["u", "v"])
    assert task.token_names == ("-1", "9", "10", "x")
    task = from_sequences([["b"]], ["u"], token_names=["a", "b"], label_names=["u"])
    assert task.tokens.tolist() == [[1]] and task.n_tokens == 2
    assert from_sequences([[0]], [0], [1e-320]).weights.tolist() == [1.0]
    assert from_sequences([[0], [0]], [0, 1], [1e308, 1e308]).weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0, 1], [0]], [0, 0]), r"as the first \(2\), but sequence 1 .* has 1 tokens"),
        (([[0, 1], 3], [0, 0]), "sequence 1 .* has a single symbol"),
        (([[0, "b"]], [0]), "mixture"),
        (([], []), "at least one sequence"),
        (([[0]], [0], [0.0]), "at least one weight must be positive"),
        (([[0]], [0], [-1.0]), "weight 0 is -1"),
        (([[2**70]], [0]), "tokens must be integers"),
    ],
)
def test_from_sequences_refuses(arguments, message):
    with pytest.raises(UserError, match=message):
        from_sequences(*arguments)
    with pytest.raises(UserError, match="the word 'c', which is not among"):
        from_sequences([["c"]], [0], token_names=["a", "b"])


def test_merge_duplicates():
    tokens, labels = [[1, 0], [0, 1], [1, 0], [1, 0]], [0, 1, 0, 1]
    merged = from_sequences(tokens, labels, [1, 2, 3, 4]).merge_duplicates()
    assert merged.tokens.tolist() == [[0, 1], [1, 0], [1, 0]]
    assert merged.labels.tolist() == [1, 0, 1]
    np.testing.assert_allclose(merged.weights, [0.2, 0.4, 0.4])
    merged = Dataset([[0, 1]] * 3, [[1, 0]] * 3).merge_duplicates()
    assert merged.labels.tolist() == [[1, 0]] and merged.labels_per_position
    assert merged.provenance["merged_from"] == 3


def test_sample_is_seeded_and_follows_the_weights():
    law = from_sequences([[0], [1], [2]], [0, 1, 2], [0.0, 1.0, 3.0])
    law = Dataset(law.tokens, law.labels, law.weights, exact=True)
    drawn = law.sample(4000, seed=3)
    again = law.sample(4000, seed=3)
    np.testing.assert_array_equal(drawn.tokens, again.tokens)
    assert not np.array_equal(drawn.tokens, law.sample(4000, seed=4).tokens)
    assert not drawn.exact and drawn.n_tokens == 3
    np.testing.assert_array_equal(drawn.weights, np.full(4000, 1 / 4000))
    np.testing.assert_array_equal(drawn.tokens[:, 0], drawn.labels)
    np.testing.assert_allclose(np.bincount(drawn.labels) / 4000, [0, 0.25, 0.75], atol=0.03)
    for n in (0, 1.5, True):
        with pytest.raises(UserError, match="integer ≥ 1"):
            law.sample(n)


def test_symbols_that_never_occur():
    task = Dataset([[0, 2], [1, 1]], [0, 1], [1.0, 0.0], n_tokens=4, n_labels=3)
    assert task.tokens_that_never_occur() == ("1", "3")
    assert task.labels_that_never_occur() == ("1", "2")


def labelled_sums(task: Dataset) -> list[tuple[tuple[str, ...], str]]:
    return [
        (tuple(task.token_names[t] for t in x), task.label_names[y])
        for x, y in zip(task.tokens, task.labels, strict=True)
    ]


@pytest.mark.parametrize(
    ("task", "rule", "n_labels"),
    [
        (data.add(20), lambda a, b: a + b, 39),
        (data.sub(20), lambda a, b: abs(a - b), 20),
        (data.mul(20), lambda a, b: a * b, 152),
        (data.mod(20), lambda a, b: 1 + (a + b) % 20, 20),
        (data.mod(20, modulus=7), lambda a, b: (a + b) % 7, 7),
        (data.mod(5, length=3, n_outputs=30), lambda a, b, c: 1 + (a + b + c) % 5, 30),
        (data.add(6, length=3), lambda a, b, c: a + b + c, 16),
        (data.mul(4, length=3), lambda a, b, c: a * b * c, 16),
    ],
)
def test_arithmetic(task, rule, n_labels):
    rows = labelled_sums(task)
    n = task.n_tokens
    expected = itertools.product(range(1, n + 1), repeat=task.length)
    assert [tuple(map(int, x)) for x, _ in rows] == list(expected)
    assert all(int(y) == rule(*map(int, x)) for x, y in rows)
    assert task.n_labels == n_labels and task.exact
    np.testing.assert_allclose(task.weights.sum(), 1)
    if n_labels != 30:
        assert task.labels_that_never_occur() == ()
    else:
        assert task.label_names[5] == "unused 1" and len(task.labels_that_never_occur()) == 25


def test_composite_addition():
    task = data.composite_addition()
    assert task.sizes == {"token": 110, "label": 118, "position": 3} and task.n_samples == 10_000
    for (a1, a2, x), y in labelled_sums(task)[::37]:
        assert 11 <= int(a1) <= 20 and 11 <= int(a2) <= 20 and 21 <= int(x) <= 120
        assert int(y) == int(a1) + int(a2) + int(x)
    assert task.labels_that_never_occur() == ()
    task = data.composite_addition(anchors=3, keys=5, modulus=5, key_first=True)
    assert task.n_labels == 5
    for (x, a1, a2), y in labelled_sums(task):
        assert int(x) >= 14 > int(a1) and int(y) == (int(a1) + int(a2) + int(x)) % 5


def test_min_max():
    task = data.min_max(6)
    assert task.token_names[:3] == ("a", "b", "1") and task.n_samples == 72
    for (c, x1, x2), y in labelled_sums(task):
        assert int(y) == (max if c == "a" else min)(int(x1), int(x2))


def test_anchor_parity():
    task = data.anchor_parity()
    assert (task.n_samples, task.sizes) == (10_000, {"token": 50, "label": 2, "position": 8})
    assert task.token_names[0] == "11" and task.token_names[10] == "21" and not task.exact
    is_anchor = task.tokens < 10
    assert (is_anchor.sum(axis=1) == 1).all()
    np.testing.assert_allclose(is_anchor.mean(axis=0), 1 / 8, atol=0.02)
    for x, y in labelled_sums(task)[:200]:
        anchor = next(int(t) for t in x if int(t) <= 20)
        assert y == ("even" if anchor % 2 == 0 else "odd")
    np.testing.assert_array_equal(task.tokens, data.anchor_parity().tokens)
    assert not np.array_equal(task.tokens, data.anchor_parity(seed=1).tokens)
    small = data.anchor_parity(anchors=2, noise=2, length=3, samples="all")
    assert small.exact and small.n_samples == 24
    assert len({tuple(x) for x in small.tokens}) == 24


def test_label_laws():
    y = np.arange(51)
    shapes = {
        "uniform": np.ones(51),
        "normal": np.exp(-((y - 25) ** 2) / 2),
        "exponential": np.exp(-5.0 * y),
        "poisson": np.exp(y * np.log(10.0) - [np.log(np.arange(1.0, k + 1)).sum() for k in y]),
    }
    for law, shape in shapes.items():
        p = data.law_probabilities(law)
        np.testing.assert_allclose(p, shape / shape.sum(), rtol=1e-12)
        exact = data.label_law(law, labels="exact")
        assert exact.exact and exact.n_labels == 51
        found = np.bincount(exact.labels, exact.weights, minlength=51)
        np.testing.assert_allclose(found, p, rtol=1e-10)
        frozen = data.label_law(law, seed=1)
        assert frozen.n_samples == 2601 and not frozen.exact
        assert (frozen.tokens[:, 0] == 51).all() and frozen.token_names[51] == "a"
        assert len({tuple(x) for x in frozen.tokens}) == 2601
        found = np.bincount(frozen.labels, minlength=51) / 2601
        np.testing.assert_allclose(found, p, atol=0.03)
    np.testing.assert_array_equal(frozen.labels, data.label_law(law, seed=1).labels)
    assert data.law_probabilities("normal", 9, mean=1e6).argmax() == 9


def test_sampled_arithmetic():
    task = data.add(50, length=8, samples=500, seed=2)
    assert task.n_samples == 500 and not task.exact and task.provenance["seed"] == 2
    numbers = task.tokens + 1
    found = [int(task.label_names[y]) for y in task.labels]
    np.testing.assert_array_equal(numbers.sum(axis=1), found)
    assert numbers.min() == 1 and numbers.max() == 50
    with pytest.raises(UserError, match=r"has 39,062,500,000,000 sequences.* samples="):
        data.add(50, length=8)
    with pytest.raises(UserError, match="does not fit in 64-bit"):
        data.mul(50, length=20, samples=10)


@pytest.mark.parametrize(
    ("task", "given", "message"),
    [
        ("ad", {}, "unknown task 'ad'; did you mean 'add'"),
        ("add", {"number": 3}, "task add has no option 'number'; did you mean 'numbers'"),
        ("add", {"numbers": 0}, "option numbers of task add must be an integer in 1 .* found 0"),
        ("add", {"numbers": "20"}, "numbers of task add .* found '20'"),
        ("add", {"numbers": 10**9, "samples": 5}, "option numbers"),
        ("add", {"length": 2.0}, "option length of task add"),
        ("add", {"n_outputs": 38}, "n_outputs of task add must be an integer in 39"),
        ("add", {"samples": 0}, "option samples of task add .* found 0"),
        ("add", {"samples": "some"}, "must be 'all' or an integer ≥ 1, found 'some'"),
        ("add", {"samples": 10**12}, "option samples"),
        ("add", {"seed": -1, "samples": 3}, "option seed of task add must be an integer ≥ 0"),
        ("mod", {"modulus": 0}, "option modulus of task mod"),
        ("composite_addition", {"key_first": 1}, "true or false"),
        ("label_law", {"law": "normall"}, "did you mean 'normal'"),
        ("label_law", {"deviation": 0}, "a finite number > 0, found 0"),
        ("label_law", {"labels": "exat"}, "did you mean 'exact'"),
        ("text", {"length": 0}, "option length of task text"),
        ("own", {}, "task own needs the option 'path'"),
        ("nowhere.csv", {}, "there is no file 'nowhere.csv'"),
        ("nowhere.py:f", {}, "there is no file 'nowhere.py'"),
    ],
)
def test_load_refuses(task, given, message):
    with pytest.raises(UserError, match=message):
        data.load(task, **given)


def test_load_and_describe():
    assert data.load("min-max", numbers=4).n_samples == 32
    assert data.load("add", numbers=3).name == "add"
    described = {task.name: task for task in data.describe()}
    assert described.keys() == data.TASKS.keys()
    assert all(task.summary.endswith((".", ")")) for task in described.values())
    assert described["add"].options["numbers"] == 20
    assert described["own"].options["path"] is ...


def test_import_is_light():
    """theory.data asks for numpy alone, whatever its package already holds."""
    code = (
        "import sys, numpy, theory; before = set(sys.modules); import theory.data; "
        "new = {name.split('.')[0] for name in sys.modules.keys() - before}; "
        "print(sorted(new - set(sys.stdlib_module_names)), 'pydoc_data' in new)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() in ("['theory'] False", "[] False")


def test_enumeration_is_lexicographic_and_complete():
    rows, exact, _ = options.sequences("add", [2, 3], "all", 0)
    assert exact and rows.tolist() == [list(x) for x in itertools.product(range(2), range(3))]


# The user's own files


def test_csv(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("y,x2,x1,weight\nbig,10,9,1\n\nsmall, 9 ,x,3\n", encoding="utf-8-sig")
    task = data.load(str(path))
    assert task.token_names == ("9", "10", "x") and task.label_names == ("big", "small")
    assert task.tokens.tolist() == [[0, 1], [2, 0]] and task.labels.tolist() == [0, 1]
    assert task.weights.tolist() == [0.25, 0.75]
    assert task.provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text("x1,x2,y1,y2\na,b,b,c\nb,c,c,a\n")
    task = data.load("own", path=str(path), shared_vocabulary=True)
    assert task.labels_per_position and task.label_names == task.token_names == ("a", "b", "c")
    assert task.labels.tolist() == [[1, 2], [2, 0]]
    assert data.own(str(path)).label_names == ("a", "b", "c")
    path.write_text('x1,y\n"a,b",1\n')
    assert data.own(str(path), n_outputs=3).label_names == ("1", "unused 1", "unused 2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "own.csv' is empty"),
        (b"\n \n", "own.csv' is empty"),
        (b"x1,x2,y\n", "own.csv holds a header but no sequence"),
        (b"1,2,3\n", r"own.csv, line 1: there is no column 'x1'"),
        (b"x1,x3,y\n", r"line 1: there is no column 'x2'"),
        (b"x1,x2\n1,2\n", r"line 1: there is no column 'y1'; the header must name"),
        (b"x1,y,wieght\n", r"line 1: unknown column 'wieght'; did you mean 'weight'"),
        (b"x1,x1,y\n", "column 'x1' occurs twice"),
        (b"x1,x2,y\n1,2,3\n1,2\n", r"own.csv, line 3: expected 3 columns, found 2"),
        (b"x1,x2,y\n1,2,3\n1,2,3,4\n", r"own.csv, line 3: expected 3 columns, found 4"),
        (b"x1,x2,y\n1,,3\n", r"line 2: column 2 is empty"),
        (b"x1,y,weight\n1,2,-3\n", r"own.csv, line 2: the weight must be .* found '-3'"),
        (b"x1,y,weight\n1,2,nan\n", r"line 2: the weight"),
        (b"x1,y,weight\n1,2,1e999\n", r"line 2: the weight"),
        (b"x1,y,weight\n1,2,0\n", "own.csv: at least one weight must be positive"),
        (b"x1,y\n1,\xff\n", r"not UTF-8: byte 0xff at byte offset 7, line 2"),
        (b"x1,y\n1,\x00\n", r"NUL byte at byte offset 7, line 2"),
        (b'x1,y\n1,"2\n', r"line 2: not valid CSV"),
    ],
)
def test_csv_refuses(tmp_path, content, message):
    path = tmp_path / "own.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        data.own(str(path))


def test_json_lines(tmp_path):
    path = tmp_path / "own.jsonl"
    lines = [{"tokens": [3, "é"], "label": 7, "weight": 2}, {"tokens": ["é", 12], "label": 7}]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    task = data.load(str(path))
    assert task.token_names == ("3", "12", "é") and task.label_names == ("7",)
    assert task.tokens.tolist() == [[0, 2], [2, 1]]
    np.testing.assert_allclose(task.weights, [2 / 3, 1 / 3])
    path.write_text('{"tokens": [1, 2], "label": ["a", "b"]}\n')
    assert data.own(str(path)).labels.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ("[" * 200_000, "line 2: not valid JSON"),
        ("[1]", "line 2: expected"),
        ('{"tokens": [1, 2]}', "line 2: the key 'label' is missing"),
        ('{"tokens": [1, 2], "labels": 1}', "line 2: unknown key 'labels'; did you mean 'label'"),
        ('{"tokens": [1], "label": 1}', "line 2: expected 2 tokens as in the first .* found 1"),
        ('{"tokens": [], "label": 1}', "line 2: tokens must be a list"),
        ('{"tokens": "ab", "label": 1}', "line 2: tokens must be a list"),
        ('{"tokens": [1, 2.5], "label": 1}', "line 2: a symbol must be an integer or a word"),
        ('{"tokens": [1, null], "label": 1}', "line 2: a symbol .* found None"),
        ('{"tokens": [1, 2], "label": true}', "line 2: a symbol .* found True"),
        ('{"tokens": [1, 2], "label": [1]}', "line 2: 1 labels for 2 tokens"),
        ('{"tokens": [1, 2], "label": [1, 2]}', "line 2: label must be a list in every line or"),
        ('{"tokens": [1, 2], "label": 1, "weight": -1}', "line 2: the weight .* found -1"),
        ('{"tokens": [1, 2], "label": 1, "weight": NaN}', "line 2: the weight"),
        ('{"tokens": [1, 2], "label": 1, "weight": true}', "line 2: the weight"),
        (f'{{"tokens": [1, 2], "label": 1, "weight": 1{"0" * 400}}}', "line 2: the weight"),
    ],
)
def test_json_lines_refuse(tmp_path, line, message):
    path = tmp_path / "own.jsonl"
    path.write_text('{"tokens": [1, 2], "label": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        data.own(str(path))


def test_npz(tmp_path):
    path = tmp_path / "own.npz"
    tokens, labels = np.array([[0, 3], [1, 1]], np.int32), np.array([0, 1])
    np.savez(path, tokens=tokens, labels=labels, weights=[1, 3], token_names=list("abcd"))
    task = data.load(str(path))
    assert task.token_names == ("a", "b", "c", "d") and task.weights.tolist() == [0.25, 0.75]
    assert task.tokens_that_never_occur() == ("c",)
    np.savez(path, tokens=tokens, labels=tokens)
    task = data.own(str(path), shared_vocabulary=True)
    assert task.labels_per_position and task.n_labels == task.n_tokens == 4
    np.savez(path, tokens=[["u", "v"]], labels=["w"])
    assert data.own(str(path), shared_vocabulary=True).token_names == ("u", "v", "w")
    assert data.own(str(path)).label_names == ("w",)


def test_npz_refuses(tmp_path):
    path = tmp_path / "own.npz"
    whole = {"tokens": [[0, 1]], "labels": [0]}

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            data.own(str(path))

    np.savez(path, tokens=np.array([[0, None]], dtype=object), labels=[0])
    refused("pickled objects, which are never loaded")
    np.savez(path, **whole, weigths=[1])
    refused("unknown array 'weigths'; did you mean 'weights'")
    np.savez(path, tokens=[[0]])
    refused("has no array 'labels'")
    np.savez(path, **whole, weights=[-1.0])
    refused("own.npz: weights must be finite and ≥ 0, but weight 0 is -1.0")
    np.savez(path, tokens=[[0.5]], labels=[0])
    refused("own.npz: tokens must be integers, found dtype float64")
    np.savez(path, **whole)
    path.write_bytes(path.read_bytes()[:150])
    refused("is not a readable .npz")
    path.write_bytes(b"")
    refused("is not a readable .npz")
    path.write_bytes(b"hello")
    refused("not a readable .npz|pickled")
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    refused("single array")
    with pytest.raises(UserError, match=r"ends in '.txt', but own data come in"):
        data.own("file.txt")
    with pytest.raises(UserError, match="is a folder"):
        (tmp_path / "d.csv").mkdir()
        data.own(str(tmp_path / "d.csv"))
    with pytest.raises(UserError, match="must be true or false"):
        data.own(str(path), shared_vocabulary="yes")  # type: ignore[arg-type]


def test_function(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from theory.data import Dataset\n"
        "def whole(n=2): return Dataset([[0, 1]] * n, [0] * n)\n"
        "def parts(): return [['a', 'b']], ['c'], [2.0]\n"
        "def wrong(): return 3\n"
        "def ragged(): return [[0, 1], [0]], [0, 0]\n"
        "def fails(): raise KeyError('x')\n"
    )
    assert data.load(f"{path}:whole", n=5).n_samples == 5
    assert data.load(f"{path}:parts").label_names == ("c",)
    for name, message in {
        "wrong": "must return a Dataset .* it returned a value of type int",
        "ragged": "mine.py:ragged: every sequence must have as many tokens",
        "fails": "KeyError: 'x'",
        "hole": "has no function 'hole'; did you mean 'whole'",
    }.items():
        with pytest.raises(UserError, match=message):
            data.load(f"{path}:{name}")
    with pytest.raises(UserError, match="cannot be called with these options: .*'m'"):
        data.load(f"{path}:whole", m=5)
    path.write_text("def broken(:\n")
    with pytest.raises(UserError, match=r"mine.py:\d+: SyntaxError"):
        data.load(f"{path}:broken")


# Text


def test_words():
    found = words("It isn't so... ____x 3.5\n===\nCafé, OK?")
    assert found == ["it", "isn't", "so", ".", "_", "x", "3", ".", "5", "=", "café", ",", "ok", "?"]


def test_text_windows(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b c a b d a, A b e", encoding="utf-8")
    stream = "a b c a b d a , a b e".split()
    task = data.text(str(path), vocabulary=100, length=3)
    named = [[task.token_names[t] for t in x] for x in task.tokens]
    assert named == [stream[0:3], stream[3:6], stream[6:9]]
    named = [[task.label_names[t] for t in x] for x in task.labels]
    assert named == [stream[1:4], stream[4:7], stream[7:10]]
    assert task.n_labels == task.n_tokens == 6 and task.labels_per_position
    assert task.provenance["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()

    task = data.text(str(path), vocabulary=2, length=3, stride=1)
    assert task.token_names == ("a", "b", "<unk>") and task.n_samples == 8
    named = [[task.token_names[t] for t in x] for x in task.tokens]
    assert named[2] == ["<unk>", "a", "b"] and named[-1] == ["<unk>", "a", "b"]
    assert task.token_names[task.labels[-1, -1]] == "<unk>"
    assert data.text(str(path), length=10).n_samples == 1
    with pytest.raises(UserError, match="holds 11 tokens, but one window of length 11 .* need 12"):
        data.text(str(path), length=11)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(10, 40))
def test_every_window_is_a_piece_of_the_text(tmp_path_factory, length, stride, n):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    stream = [str(i) for i in range(n)]
    path.write_text(" ".join(stream))
    task = data.text(str(path), vocabulary=n, length=length, stride=stride)
    starts = [s for s in range(0, n, stride) if s + length + 1 <= n]
    assert task.n_samples == len(starts)
    assert task.n_tokens == n and "<unk>" not in task.token_names
    names = np.array(task.token_names)
    for row, s in enumerate(starts):
        assert names[task.tokens[row]].tolist() == stream[s : s + length]
        assert names[task.labels[row]].tolist() == stream[s + 1 : s + length + 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "text.txt' is empty"),
        (b"a b\nc \xe9 d", r"not UTF-8: byte 0xe9 at byte offset 6, line 2"),
        (b"a b\n\nc\x00d", r"NUL byte at byte offset 6, line 3"),
        (b"a b", "holds 2 tokens"),
        (" \u2003".encode(), "holds 0 tokens"),
    ],
)
def test_text_refuses(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        data.text(str(path), length=4)


def test_the_text_that_python_ships():
    task = data.text()
    assert task.length == 32 and task.n_tokens == 1001 and task.token_names[-1] == "<unk>"
    assert task.n_samples > 1000 and len(task.provenance["sha256"]) == 64
    assert "the" in task.token_names[:5]
    assert task.tokens_that_never_occur() == ()
    counts = np.bincount(task.tokens.ravel(), minlength=1001)[:1000]
    # Ordered by frequency in the whole text; windows drop at most the last few words.
    assert (np.diff(counts) <= 40).all() and counts[0] > counts[100] > counts[900]
