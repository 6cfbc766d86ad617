"""A real browser for tests of the report: the system's Chromium, driven by playwright; nothing is downloaded."""

import contextlib
import importlib.util
import os
import shutil

# In the order of preference; `CHROMIUM` names another one.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    """The path of a Chromium, or None."""
    own = os.environ.get("CHROMIUM")
    return next((path for name in ((own,) if own else NAMES) if (path := shutil.which(name))), None)


def missing() -> str:
    """What is missing for tests in a browser, in words; empty when nothing is."""
    if executable() is None:
        return "no chromium was found; install it (Debian: apt-get install chromium) or name it in CHROMIUM"
    return "" if importlib.util.find_spec("playwright") else "playwright is not installed"


@contextlib.contextmanager
def launched():
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The sandbox needs namespaces that root in a container has not got; the page under test is our own.
        browser = playwright.chromium.launch(executable_path=executable(), chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """A page, with everything it complained of and everything it asked for."""

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1100, "height": 900}, **options})
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()

    def open(self, ready=True):
        self.page.goto(self.url)
        if ready:
            self.page.wait_for_selector("html[data-ready=yes]", state="attached")
        return self.page

    def loaded(self):
        """What was asked for besides the file itself and data within it."""
        return [url for url in self.requests if url != self.url and not url.startswith("data:")]
