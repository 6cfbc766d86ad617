"""Corpora: text of any size, counted into the signatures and moments of its tokens.

from theory import corpus

counts = corpus.count("texts/", tokenizer="word", distances=(1, 2), past=True)
counts.next_token()["the"]
"""

from theory.corpus.counting import Request
from theory.corpus.counts import Counts, Moments
from theory.corpus.kinds import signature
from theory.corpus.opening import Corpus, open_corpus
from theory.corpus.store import load_counts, save_counts
from theory.corpus.tokenisers import Tokenizer
from theory.corpus.whole import corpus_tokenizer as tokenizer
from theory.corpus.whole import count, count_ids
from theory.corpus.windows import windows

__all__ = [
    "Corpus",
    "Counts",
    "Moments",
    "Request",
    "Tokenizer",
    "count",
    "count_ids",
    "load_counts",
    "open_corpus",
    "save_counts",
    "signature",
    "tokenizer",
    "windows",
]
