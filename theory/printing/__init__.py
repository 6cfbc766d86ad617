"""Equations as text, LaTeX, Markdown and JSON: one reading of a term (`notation`), several ways to write it."""
