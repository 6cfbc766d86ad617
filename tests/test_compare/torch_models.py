"""The stock models written by hand, one sequence at a time, in plain torch: independent of the language and its readers.

Each takes parameters by name and one sequence of tokens, and returns its logits (label) or (position, label).
"""

import math

import torch

ACTIVATIONS = {
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
    "quadratic": lambda z: z + z * z / 2,
}


def linear(p, x):
    return p["U"] @ sum(p["E"][token] for token in x)


def feed_forward(activation):
    def logits(p, x):
        return p["U"] @ ACTIVATIONS[activation](sum(p["E"][token] for token in x))

    return logits


def emb_mlp(activation):
    def logits(p, x):
        return p["U"] @ ACTIVATIONS[activation](p["W"] @ sum(p["E"][token] for token in x))

    return logits


def attention(positions):
    def logits(p, x):
        w = [p["E"][token] + (p["P"][s] if positions else 0) for s, token in enumerate(x)]
        query = p["Q"] @ w[-1]
        scores = torch.stack([(p["K"] @ row) @ query / math.sqrt(len(row)) for row in w])
        a = torch.softmax(scores, 0)
        mixed = sum(a[s] * (p["V"] @ row) for s, row in enumerate(w))
        return p["U"] @ (p["O"] @ mixed)

    return logits


def transformer(activation, blocks):
    def logits(p, x):
        stream = [p["E"][token] for token in x]
        for n in range(1, blocks + 1):
            Q, K, V, out, W, M = (p[f"{letter}{n}"] for letter in "QKVOWM")
            after = []
            for s, row in enumerate(stream):
                past = stream[: s + 1]
                a = torch.softmax(torch.stack([(K @ r) @ (Q @ row) / math.sqrt(len(Q)) for r in past]), 0)
                after.append(row + out @ sum(a[j] * (V @ r) for j, r in enumerate(past)))
            stream = [row + M @ ACTIVATIONS[activation](W @ row) for row in after]
        return torch.stack([p["U"] @ row for row in stream])

    return logits


def loss(logits, parameters, tokens, labels, weights):
    """Σ_s P(s) · mean over positions of −log softmax(f)_y."""
    total = 0
    for x, y, weight in zip(tokens, labels, weights, strict=True):
        f = logits(parameters, x)
        if f.ndim == 1:
            total = total - weight * torch.log_softmax(f, 0)[y]
        else:
            each = [torch.log_softmax(row, 0)[label] for row, label in zip(f, y, strict=True)]
            total = total - weight * sum(each) / len(each)
    return total
