"""Exact sums of tensor contractions: scalars, canonical components, polynomials."""
