"""Reports to test: a summary with everything in it, and pages with interactive figures, small and large."""

import json

import numpy as np
from constructed import build

from compare import figures
from compare.comparison import compare
from compare.report import ReportFigure, interactive_data, render
from compare.similarity import SignatureSimilarity, signature_correlation

SUMMARY = {
    "kind": "comparison",
    "title": "Addition <script>alert(1)</script>",
    "question": 'Does "the flow" & SGD agree?',
    "claims": [
        {
            "claim": "E follows <b>SGD</b>",
            "measure": "relative-error",
            "scope": "E, flow exact, at t = 436",
            "measured": 0.00055,
            "threshold": 0.002,
            "comparison": "<=",
            "verdict": "holds",
        },
        {
            "claim": "the error halves",
            "measure": "error-ratio",
            "scope": "E, flow exact",
            "measured": 1.1,
            "threshold": 1.7,
            "comparison": ">=",
            "verdict": "fails",
            "over_seeds": {
                "rule": "worst",
                "values": {"3": 1.1, "8": 1.9},
                "mean": 1.5,
                "range": [1.1, 1.9],
                "confidence": 0.95,
                "interval": [-3.582, 6.582],
                "met": 1,
            },
        },
    ],
    "set_up": {
        "architecture": {"name": "feed_forward", "activation": "gelu"},
        "parameters": {"E": {"axes": ["token", "embed"], "shape": [20, 128], "size": 2560}},
        "data": {"task": "add", "samples": 400, "exact": True},
        "initial": {"gamma": 0.8, "seed": 0},
        "training": {"learning_rate": [0.1], "batch": "full"},
    },
    "sizes": {"token": 20, "embed": 128},
    "equations": [
        {
            "title": "cut-logits, degree 4",
            "lines": [r"\frac{\mathrm{d} E_{\alpha}}{\mathrm{d} t} = \sum_{\nu} U_{\nu} \varphi_{\alpha}^{y;0}(\nu)"],
        }
    ],
    "flows": {"exact": {"status": "completed", "message": None, "last_good_time": 600.0, "half_loss_time": None}},
    "trainings": {
        "sgd-0.1": {
            "table": [{"prediction": "exact", "parameter": "<E>"}],
            "status": "blow-up",
            "message": "stopped <being> finite",
            "last_good_time": 3.0,
            "half_loss_time": [436.0, 437.0],
            "time_axis": "learning rate × steps",
        }
    },
    "signature_correlation": {
        name: {"measure": "pearson", "peak": {"value": 0.998, "time": 480.0}, "note": ""}
        for name in ("exact", "sgd-0.1")
    },
    "learning_rate_convergence": {
        "exact": {
            "parameter": "E",
            "time": 436.0,
            "learning_rates": [0.2, 0.1],
            "errors": [0.0011, 0.00055],
            "ratio_when_halved": [2.0],
            "slope": 1.0,
        }
    },
    "written": "2026-01-01T00:00:00+00:00",
    "seeds": {"initial": 0, "training": [0]},
    "versions": {"torch": "2"},
    "seconds": {"training": 12.0},
    "figures": [{"name": "loss", "caption": 'Loss of "x" <y>'}],
}
FIGURE = ReportFigure("loss", b"<svg xmlns='http://www.w3.org/2000/svg'/>", 'Loss of "x" <y>')
# Names that would be markup, script, the end of the data, a comment, a formula or a line of its own if they were believed.
HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 2">',
    "<!-- <script>",
    "a\u2028b & 'c' \"d\"",
    "$\\frac$",
    "naïve 😀",
    "]]>",
)
TIMES = np.linspace(0.0, 40.0, 9)
AXES = {"E": ("token", "embed")}


def similarity_of(rows, names):
    unit = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return SignatureSimilarity(np.clip(unit @ unit.T, -1, 1), np.arange(len(rows)), tuple(names), ())


def runs(seed=0, tokens=7, width=5, times=TIMES):
    """(similarity, trainings, flows): two trainings, a flow that follows the first, and one that ends early."""
    rng = np.random.default_rng(seed)
    target = rng.normal(size=(tokens, width))
    shares = (1 - np.exp(-times / 10))[:, None, None]
    path = shares * target + rng.normal(size=(tokens, width)) * 0.5
    loss = 3.0 * np.exp(-times / 15)
    made = {
        "sgd-0.1": build(times, {"E": path}, loss, axes=AXES, name="sgd-0.1"),
        "sgd-0.2": build(times, {"E": path * 1.02}, loss * 1.01, axes=AXES, name="sgd-0.2", learning_rate=0.2),
        "exact": build(
            times, {"E": path + 0.02 * shares * rng.normal(size=path.shape)}, loss * 0.99, axes=AXES, name="exact"
        ),
        "expanded": build(
            times[:4], {"E": path[:4] * 1.1}, loss[:4], axes=AXES, name="expanded", kind="flow", status="blow-up"
        ),
    }
    return (
        similarity_of(target, HOSTILE[:tokens]),
        [made["sgd-0.1"], made["sgd-0.2"]],
        [made["exact"], made["expanded"]],
    )


def data_of(similarity, trainings, flows, **options):
    """The interactive figures of such runs."""
    return interactive_data(
        similarity,
        trainings,
        flows,
        embedding="E",
        comparison=compare(trainings[0], *flows) if flows else None,
        correlations={run.name: signature_correlation(run, similarity, embedding="E") for run in (*trainings, *flows)},
        **options,
    )


def small_page():
    return render(SUMMARY, [FIGURE], data_of(*runs()))


def large_page(tokens=200, times=100, width=64, seed=0):
    """As much as a page shows, in its worst case: four runs of noise, which nothing compresses, and static figures."""
    rng = np.random.default_rng(seed)
    at = np.linspace(0.0, 500.0, times)
    loss = 4.0 * np.exp(-at / 200)
    made = [
        build(at, {"E": rng.normal(size=(times, tokens, width))}, loss, axes=AXES, name=name)
        for name in ("sgd-0.1", "sgd-0.2", "exact", "cut-logits")
    ]
    names = [f"token {i}" for i in range(tokens)]
    similarity = similarity_of(rng.normal(size=(tokens, width)), names)
    trainings, flows = made[:2], made[2:]
    drawn = []
    figure, (ax,) = figures.canvas()
    drawn.append((figure, figures.loss(ax, made[0], flows)))
    figure, axes = figures.canvas(3, width=3.4, height=3.6)
    rows = [similarity_of(run["E"].values[-1], names).matrix for run in (made[2], made[0])]
    matrices = [("signature", similarity.matrix), ("exact", rows[0]), ("sgd-0.1", rows[1])]
    drawn.append((figure, figures.similarity_matrices(axes, matrices, names)))
    figure, (ax,) = figures.canvas()
    last = [("exact", made[2]["E"].values[-1])]
    drawn.append((figure, figures.components(ax, ("sgd-0.1", made[0]["E"].values[-1]), last, names)))
    shown = [ReportFigure(f"figure-{i}", figures.svg(figure), "a figure") for i, (figure, _) in enumerate(drawn)]
    return render(SUMMARY, shown, data_of(similarity, trainings, flows))


def run_directory(path):
    """The files of a run directory of which `staircase report` makes a page."""
    (path / "figures").mkdir(parents=True)
    (path / "figures" / "loss.svg").write_bytes(FIGURE.svg)
    (path / "summary.json").write_text(json.dumps(SUMMARY), encoding="utf-8")
    (path / "interactive.json").write_text(json.dumps(data_of(*runs())), encoding="utf-8")
    return path
