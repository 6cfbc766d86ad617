"""How long the largest page of a report takes to open in a real browser, and its size: 200 tokens at 100 times, four runs.

The embeddings are noise, which nothing compresses. Opened is when both matrices and all curves are drawn.
"""

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "test_compare"))

from browser import Opened, launched, missing
from report_pages import large_page

SECONDS, BYTES, ROUNDS = 2.0, 10_000_000, 5


def main() -> None:
    if missing():
        print(f"not measured: {missing()}")
        return
    html = large_page()
    size = len(html.encode())
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        path = Path(folder) / "large.html"
        path.write_text(html, encoding="utf-8")
        opened, moved = [], []
        for _ in range(ROUNDS):
            each = Opened(browser, path)
            page = each.open()
            # On the page's own clock, from the start of the navigation.
            opened.append(float(page.locator("html").get_attribute("data-opened")) / 1000)
            page.locator("#time").focus()
            started = page.evaluate("performance.now()")
            page.keyboard.press("End")
            page.wait_for_selector("#matrices[data-moment='99']")
            moved.append((page.evaluate("performance.now()") - started) / 1000)
            each.context.close()
    print(f"a page of 200 tokens at 100 times, four runs: {size / 1e6:.2f} MB (less than {BYTES / 1e6:g})")
    print(
        f"  opens in {statistics.median(opened):.2f} s (median of {ROUNDS}; {min(opened):.2f} to {max(opened):.2f}; less than "
        f"{SECONDS:g}), moves to another time in {statistics.median(moved):.3f} s"
    )
    assert size < BYTES
    assert statistics.median(opened) < SECONDS


if __name__ == "__main__":
    main()
