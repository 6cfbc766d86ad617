"""What the words of a text are followed by, and which words are alike in that: python examples/corpus_signatures.py [PATH]

PATH is a text or JSON Lines file or a folder of them; without it, the English text that CPython ships (75,000 words).
"""

import sys

import numpy as np

from theory import corpus
from theory.signatures import cosine_similarity

SHOWN = 12  # of the most frequent words


def main(path: str | None = None) -> None:
    counts = corpus.count(path, vocabulary=2000, distances=(1, 2), past=True, moments=True)
    print(counts)
    frequent = [i for i in np.argsort(-counts.next_token().probability) if counts.names[i].isalpha()][:SHOWN]
    known = [name for name in counts.names if name != "<unk>"]  # <unk> stands last
    names = [counts.names[i] for i in frequent]
    after, behind, past = counts.next_token(names), counts.skip_gram(2, names), counts.prefix(tokens=names)
    alike = cosine_similarity(after) - 2 * np.eye(SHOWN)
    print(f"{'word':<10} {'r':>6}  {'followed by':<12} {'two on':<12} {'any time on':<12} {'most alike'}")
    for i, name in enumerate(names):
        words = (known[int(np.argmax(each[name][: len(known)]))] for each in (after, behind, past))
        print(f"{name:<10} {after.probability[i]:6.4f}  " + " ".join(f"{word:<12}" for word in words), end=" ")
        print(f"{names[int(alike[i].argmax())]} ({alike[i].max():.2f})")
    moments = counts.moments()
    print(
        f"moments of windows of {moments.length}: P {moments.P.nnz}, M {moments.M.nnz}, Q {moments.Q.nnz} entries;",
        end=" ",
    )
    print(f"kappa {moments.kappa:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
