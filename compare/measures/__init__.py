"""The measures that a claim can name. A claim may say of which flow, parameter (the embedding by default), tokens and
frequency, and at which time `at` (by default where the trained loss has halved, otherwise the last one).

Of a flow against the training; over seeds the worst counts (`departure-time`: the mean; `error-ratio`, `error-slope`: the
error is averaged over seeds; `band-coverage`: pooled):

- `relative-error`, `worst-relative-error`: ‖θ̂ − θ‖ / ‖θ‖ at the time, or its largest value up to it.
- `token-error`: the largest ‖ŵ_α − w_α‖ / ‖w_α‖ over the tokens at the time.
- `frequent-token-error`, `rare-token-error`: the mean of ‖ŵ_α − w_α‖ / ‖w_α‖ over the most and the least frequent third of the
  tokens that occur; `frequent-token-cosine`, `rare-token-cosine`: of cos(w_α − w_α(0), ŵ_α − ŵ_α(0)) (`compare.tokens`).
- `direction-cosine`, `displacement-cosine`: cos(θ, θ̂) and cos(θ − θ_0, θ̂ − θ̂_0) at the time.
- `half-loss-shift`: |t_½ predicted / trained − 1|.
- `escape-shift`, `plateau-shift`: the same of the end of the first plateau, and of the worst plateau (`compare.escape`).
- `departure-time`: when the training departs from a flow "order-m" by more than `flow.departure` (`compare.departures`);
  `departure-shift`: |that time / the end of the training's longest plateau − 1|.
- `procrustes-residual`: of predicted embeddings aligned with the trained ones at the time (`compare.spectra`).
- `error-ratio`, `error-slope`: how the error falls with the learning rate.
- `last-good-time`: how far a flow came. `band-coverage`: share of minibatch training inside its predicted band.

Of embeddings, those of the training or of a flow that the claim names; over seeds the mean (`signature-correlation-peak`: the
peak of the mean curve):

- `signature-correlation-peak`, `signature-correlation`: ρ_(0), its maximum over time or at the time (1 − MSE where Pearson is
  undefined); `signature-rank-correlation`: Spearman's at the time.
- `signature-correlation-drop`: its maximum up to the time, less its value there.
- `centred-signature-correlation-peak`, `centred-signature-correlation`: with the signatures less their mean, φ_α^{y;0}(ν) −
  P(y = ν), which drive embeddings once the model predicts the frequencies of the labels.
- `trace-back-correlation-peak`, `trace-back-correlation`: of the unembedding's rows with trace-back signatures ψ_ν(β) =
  P(x_I = β | y = ν); `centred-trace-back-correlation-peak`, `centred-trace-back-correlation`: with ψ_ν(β) − r_β.
- `order-1-probe`, `order-2-probe`: correlation of fitted probes with tokens held out, at the time (`compare.probes`);
  `order-1-probe-pairs`, `order-2-probe-pairs`: with pairs of tokens held out; `order-2-advantage`: the second less the first.
- `fourier-correlation`: ρ_(1),k of the claim's `frequency` k; `fourier-best`: the largest over k ≥ `frequency` (1 by default);
  `fourier-winner`: the k that has it.
- `accuracy`: at the time, and `accuracy-peak`: its maximum; `mean-cosine`: of two embeddings; `group-contrast`: mean cosine
  within the claim's `tokens`, less that between them and all others; `norm-growth`: of the embeddings of these tokens, since
  the start (`compare.outcomes`).
- `ordered-similarity`, `cyclic-similarity`: Pearson of the cosine of two of the claim's `tokens` with the closeness of their
  places in the claim, on a line or in a circle (`compare.outcomes`).
- `order-1-gain`: what order 1 adds to the R² of order 0 for the embedding similarity (`compare.decomposition`).
- `fourier-peak`: the largest share of one frequency in what varies with the token (`compare.spectra`).
- `effective-rank`, `participation-ratio` (`compare.spectra`).
- `label-law-pearson`, `label-law-kl`, `label-law-jsd`: softmax(U w_α) against P(y | α), mean of tokens, or of the claim's
  `tokens` (`compare.label_laws`).
- `attention-entropy` (nats), `attention-mass` of the claim's `tokens` (`compare.attention`).

Of the data alone: `order-0-accuracy`: how often the sum of order-0 signatures decides for the label, the least over the same
task with 2, 3, … numbers up to its own.

A new measure is a function of (`Evidence`, `Subject`) that gives a `Measured`, and a line in `compare.measures.registry`.
"""

from compare.measures.evidence import BandCoverage, Evidence, Measured, Subject
from compare.measures.registry import MEASURES, Measure

__all__ = ["MEASURES", "BandCoverage", "Evidence", "Measure", "Measured", "Subject"]
