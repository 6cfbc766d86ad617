"""A corpus as a stream of token numbers, block by block, each with the cursor from which reading goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from theory.corpus.documents import Piece
from theory.corpus.opening import Corpus, Cursor
from theory.corpus.tokenisers import Tokenizer
from theory.errors import UserError

# So many characters are tokenised together: the tokenizers library spreads them over the processors.
BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Block:
    """Tokens of consecutive pieces.

    - `ids`: token numbers (token,), int32; `starts`: places at which a document begins, ascending (a document without
      tokens begins where the next one does).
    - `after`: the cursor behind the block.
    """

    ids: np.ndarray
    starts: np.ndarray
    after: Cursor


def blocks(corpus: Corpus, tokenizer: Tokenizer, start: Cursor | None = None, size: int = BLOCK) -> Iterator[Block]:
    """The tokens of a corpus from a cursor on.

    **Arguments:** `size`: characters in a block, about; what is counted does not depend on it.

    **Raises:** `UserError` naming the file and line of what is not in the tokenizer's vocabulary.
    """
    pieces: list[Piece] = []
    gathered = 0
    after: Cursor | None = None
    for piece, behind in corpus.pieces(start):
        pieces.append(piece)
        gathered += len(piece.text)
        after = behind
        if gathered >= size and after is not None:
            yield _block(pieces, tokenizer, after)
            pieces, gathered = [], 0
    if pieces:
        assert after is not None  # a source ends with its last document
        yield _block(pieces, tokenizer, after)


def _block(pieces: list[Piece], tokenizer: Tokenizer, after: Cursor) -> Block:
    try:
        parts = tokenizer.encode([piece.text for piece in pieces])
    except UserError as error:
        raise _located(pieces, tokenizer) or error from None
    begins = np.cumsum([0, *(len(part) for part in parts)])[:-1]
    firsts = np.array([piece.first for piece in pieces], dtype=bool)
    return Block(np.concatenate(parts), begins[firsts], after)


def _located(pieces: list[Piece], tokenizer: Tokenizer) -> UserError | None:
    """The first mistake again, with its place; no token goes over the end of a line."""
    for piece in pieces:
        for number, line in enumerate(piece.text.split("\n")):
            try:
                tokenizer.encode([line])
            except UserError as error:
                return UserError(f"{piece.where(number)}: {error}")
    return None
