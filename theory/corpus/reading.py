"""A corpus as a stream of token numbers, block by block, each with the cursor from which reading goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from theory.corpus.opening import Corpus, Cursor
from theory.corpus.tokenisers import Tokenizer

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
    """
    texts: list[str] = []
    firsts: list[bool] = []
    gathered = 0
    after: Cursor | None = None
    for piece, behind in corpus.pieces(start):
        texts.append(piece.text)
        firsts.append(piece.first)
        gathered += len(piece.text)
        after = behind
        if gathered >= size and after is not None:
            yield _block(texts, firsts, tokenizer, after)
            texts, firsts, gathered = [], [], 0
    if texts:
        assert after is not None  # a source ends with its last document
        yield _block(texts, firsts, tokenizer, after)


def _block(texts: list[str], firsts: list[bool], tokenizer: Tokenizer, after: Cursor) -> Block:
    parts = tokenizer.encode(texts)
    begins = np.cumsum([0, *(len(part) for part in parts)])[:-1]
    return Block(np.concatenate(parts), begins[np.array(firsts, dtype=bool)], after)
