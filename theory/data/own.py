"""The user's own data: sequences and labels from .npz, CSV, JSON Lines or a Python function."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import inspect
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from theory.data import options
from theory.data.dataset import Dataset, from_sequences, vocabulary_of
from theory.data.reading import read_bytes, read_text
from theory.errors import UserError, nearest
from theory.python_files import failures_told, functions_of, load_file

SUFFIXES = (".npz", ".csv", ".jsonl")
ARRAYS = ("tokens", "labels", "weights", "token_names", "label_names")
KEYS = ("tokens", "label", "weight")


@dataclasses.dataclass
class _Rows:
    """Symbols read so far, all as strings; `lines` remembers where each row came from."""

    tokens: list[list[str]] = dataclasses.field(default_factory=list)
    labels: list[list[str] | str] = dataclasses.field(default_factory=list)
    weights: list[float] = dataclasses.field(default_factory=list)


def own(path: str, shared_vocabulary: bool = False, n_outputs: int | None = None) -> Dataset:
    """Read the user's own sequences from a file ending in .npz, .csv or .jsonl.

    **Arguments:**

    - `path`: the file. `.npz`: arrays `tokens` (sample, position), `labels` (sample,) or (sample,
      position) and optionally `weights` (sample,), `token_names`, `label_names`; integers are
      indices counted from 0. `.csv`: a header with columns x1 … xL, y (or y1 … yL, one label per
      position) and optionally weight, in any order; symbols are numerals or words. `.jsonl`: one
      `{"tokens": […], "label": …, "weight": …}` per line; a list of labels means one per position.
    - `shared_vocabulary`: use one vocabulary for tokens and labels (next-token data), so that
      V_out = V_in. Files of indices already share it.
    - `n_outputs`: V_out, at least the number of labels in the file.

    In .csv and .jsonl files the vocabulary is the set of symbols found (numerals by value, then
    words by letters). Weights are divided by their sum.

    **Returns:** a `Dataset` (`exact` is False: the file is taken as a sample).

    **Raises:** `UserError` naming the file and the line for anything that does not fit.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"option path of task own must be a file name, found {path!r}")
    if not isinstance(shared_vocabulary, bool):
        raise UserError(f"option shared_vocabulary of task own must be true or false, found {shared_vocabulary!r}")
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"{str(path)!r} ends in {suffix!r}, but own data come in files ending in "
            f"{', '.join(SUFFIXES)} or from file.py:function"
        )
    if suffix == ".npz":
        dataset = _from_arrays(path, shared_vocabulary)
    else:
        rows = _read_csv(path) if suffix == ".csv" else _read_json_lines(path)
        dataset = _from_rows(path, rows, shared_vocabulary)
    if n_outputs is not None:
        names = options.outputs("own", dataset.label_names, n_outputs)
        dataset = dataclasses.replace(dataset, n_labels=len(names), label_names=names)
    return dataset


def from_function(reference: str, **arguments: Any) -> Dataset:
    """Call `function` of `file.py:function` and take what it returns as the data.

    **Arguments:** `reference`: "file.py:function"; `arguments`: passed to the function, which
    returns a `Dataset` or (tokens, labels[, weights]) as `from_sequences` takes them.

    **Raises:** `UserError` when file or function is missing, an argument is unknown, the
    function fails (naming its exception), or returns something else.
    """
    function = load_function(reference)
    known = inspect.signature(function)
    try:
        known.bind(**arguments)
    except TypeError as error:
        raise UserError(f"{reference} cannot be called with these options: {error}") from None
    with failures_told(reference):
        result = function(**arguments)
    if isinstance(result, Dataset):
        return result
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise UserError(
            f"{reference} must return a Dataset or (tokens, labels[, weights]), but it returned {_describe(result)}"
        )
    try:
        return from_sequences(*result, name=reference, provenance={"function": reference})
    except UserError as error:
        raise UserError(f"{reference}: {error}") from None


def is_reference(task: str) -> bool:
    """Whether `task` names own data: a data file or `file.py:function`."""
    return bool(re.search(r"\.py:[^:/\\]*$", task)) or task.lower().endswith(SUFFIXES)


def load_function(reference: str) -> Callable[..., Any]:
    file, _, name = reference.rpartition(":")
    module = load_file(file)
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{file} has no function {name!r}; {nearest(name, functions_of(module))}")
    return function


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a value of type {type(value).__name__}"


def _provenance(path: str | Path) -> dict[str, Any]:
    digest = hashlib.sha256(read_bytes(path)).hexdigest()
    return {"task": "own", "path": str(path), "sha256": digest}


def _from_arrays(path: str | Path, shared: bool) -> Dataset:
    content = read_bytes(path)
    try:
        archive = np.load(io.BytesIO(content), allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise UserError(f"{str(path)!r} is a single array; write it with numpy.savez")
        unknown = [key for key in archive.files if key not in ARRAYS]
        if unknown:
            raise UserError(f"{str(path)!r} has the unknown array {unknown[0]!r}; {nearest(unknown[0], ARRAYS)}")
        missing = [key for key in ("tokens", "labels") if key not in archive.files]
        if missing:
            raise UserError(f"{str(path)!r} has no array {missing[0]!r}")
        arrays = {key: archive[key] for key in archive.files}
    except UserError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        hint = "holds pickled objects, which are never loaded" if b"NUMPY" in content else ""
        reason = hint if "pickle" in str(error) and hint else f"is not a readable .npz ({error})"
        raise UserError(f"{str(path)!r} {reason}") from None
    names: dict[str, Any] = {
        key: [str(name) for name in arrays[key].ravel()] if key in arrays else None
        for key in ("token_names", "label_names")
    }
    tokens, labels = arrays["tokens"], arrays["labels"]
    if shared:
        names["label_names"] = names["token_names"] = _shared_names(tokens, labels, names)
    try:
        return from_sequences(
            tokens, labels, arrays.get("weights"), **names,
            name=Path(path).stem, provenance=_provenance(path),
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _shared_names(tokens: np.ndarray, labels: np.ndarray, names: dict[str, Any]) -> list[str]:
    given = names["token_names"] or names["label_names"]
    if given is not None:
        return given
    if tokens.dtype.kind == "U" and labels.dtype.kind == "U":
        return list(vocabulary_of(np.concatenate([tokens.ravel(), labels.ravel()])))
    if tokens.dtype.kind in "iu" and labels.dtype.kind in "iu" and tokens.size and labels.size:
        return [str(i) for i in range(int(max(tokens.max(), labels.max())) + 1)]
    raise UserError("a shared vocabulary needs tokens and labels that are both indices or words")


def _from_rows(path: str | Path, rows: _Rows, shared: bool) -> Dataset:
    names: dict[str, Any] = {}
    if shared:
        flat = [symbol for row in rows.tokens for symbol in row]
        flat += [s for row in rows.labels for s in ([row] if isinstance(row, str) else row)]
        names = dict.fromkeys(("token_names", "label_names"), vocabulary_of(flat))
    try:
        return from_sequences(
            rows.tokens, rows.labels, rows.weights, **names,
            name=Path(path).stem, provenance=_provenance(path),
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _weight(where: str, value: Any) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError, OverflowError):
        weight = float("nan")
    if isinstance(value, bool) or not (0 <= weight < float("inf")):
        raise UserError(f"{where}: the weight must be a finite number ≥ 0, found {value!r}")
    return weight


def _read_csv(path: str | Path) -> _Rows:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    rows = _Rows()
    columns: tuple[list[int], list[int], int | None, int] | None = None
    try:
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            cells = [cell.strip() for cell in cells]
            if not any(cells):
                continue
            if columns is None:
                columns = _columns(where, cells)
                continue
            xs, ys, w, width = columns
            if len(cells) != width:
                raise UserError(f"{where}: expected {width} columns, found {len(cells)}")
            empty = [i for i in range(width) if not cells[i]]
            if empty:
                raise UserError(f"{where}: column {empty[0] + 1} is empty")
            rows.tokens.append([cells[i] for i in xs])
            rows.labels.append([cells[i] for i in ys] if len(ys) > 1 else cells[ys[0]])
            rows.weights.append(1.0 if w is None else _weight(where, cells[w]))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not valid CSV ({error})") from None
    if not rows.tokens:
        raise UserError(f"{path} holds a header but no sequence")
    return rows


def _columns(where: str, header: list[str]) -> tuple[list[int], list[int], int | None, int]:
    """Column numbers of x1 … xL, of y (or y1 … yL) and of the weight, and the number of columns."""
    rule = "the header must name the columns x1, …, xL, y (or y1, …, yL) and optionally weight"
    index = {name: i for i, name in enumerate(header)}
    if len(index) != len(header):
        twice = next(name for i, name in enumerate(header) if name in header[:i])
        raise UserError(f"{where}: column {twice!r} occurs twice; {rule}")
    length = sum(bool(re.fullmatch(r"x[0-9]+", name)) for name in header)
    xs = [f"x{i + 1}" for i in range(length)]
    ys = ["y"] if "y" in index else [f"y{i + 1}" for i in range(length)]
    expected = {*(xs or ["x1"]), *(ys or ["y"])}
    missing = sorted(expected - index.keys())
    if missing:
        raise UserError(f"{where}: there is no column {missing[0]!r}; {rule}; found {header}")
    unknown = sorted(index.keys() - expected - {"weight"})
    if unknown:
        known = sorted(expected | {"weight"})
        raise UserError(f"{where}: unknown column {unknown[0]!r}; {nearest(unknown[0], known)}")
    columns = [index[name] for name in xs], [index[name] for name in ys]
    return *columns, index.get("weight"), len(header)


def _read_json_lines(path: str | Path) -> _Rows:
    rows = _Rows()
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON ({error})") from None
        if not isinstance(record, dict):
            raise UserError(f'{where}: expected {{"tokens": […], "label": …}}, found {line[:60]!r}')
        unknown = sorted(record.keys() - set(KEYS))
        if unknown:
            raise UserError(f"{where}: unknown key {unknown[0]!r}; {nearest(unknown[0], KEYS)}")
        missing = [key for key in KEYS[:2] if key not in record]
        if missing:
            raise UserError(f"{where}: the key {missing[0]!r} is missing")
        tokens, label = record["tokens"], record["label"]
        if not isinstance(tokens, list) or not tokens:
            raise UserError(f"{where}: tokens must be a list of at least one symbol")
        if rows.tokens and len(tokens) != len(rows.tokens[0]):
            raise UserError(
                f"{where}: expected {len(rows.tokens[0])} tokens as in the first sequence, found {len(tokens)}"
            )
        if isinstance(label, list) and len(label) != len(tokens):
            raise UserError(f"{where}: {len(label)} labels for {len(tokens)} tokens")
        if rows.labels and isinstance(label, list) != isinstance(rows.labels[0], list):
            raise UserError(f"{where}: label must be a list in every line or in none")
        rows.tokens.append([_symbol(where, symbol) for symbol in tokens])
        single = not isinstance(label, list)
        rows.labels.append(_symbol(where, label) if single else [_symbol(where, s) for s in label])
        rows.weights.append(_weight(where, record.get("weight", 1.0)))
    if not rows.tokens:
        raise UserError(f"{path} holds no sequence")
    return rows


def _symbol(where: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise UserError(f"{where}: a symbol must be an integer or a word, found {value!r}")
    return str(value)
