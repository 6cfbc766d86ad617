"""The report in a real browser: what moves, what can be switched, what a keyboard reaches, and that nothing is loaded."""

import re

import numpy as np
import pytest
from browser import Opened, launched, missing
from matplotlib import colormaps
from report_pages import HOSTILE, SUMMARY, TIMES, data_of, large_page, runs, small_page

from compare.report import render

if missing():
    # The whole file, so that it is one line of pytest's summary.
    pytest.skip(f"TESTS IN A BROWSER NOT RUN: {missing()}", allow_module_level=True)


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(small_page(), encoding="utf-8")
    return file


@pytest.fixture
def opened(browser, path):
    """Opens the small page; complaints and requests are judged when the test is over."""
    made = []

    def opener(ready=True, before=None, **options):
        made.append(Opened(browser, path, **options))
        if before:
            made[-1].page.add_init_script(before)
        return made[-1].open(ready)

    yield opener
    for each in made:
        each.context.close()
        assert each.complaints == [] and each.loaded() == []


def cosines(rows):
    unit = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    return unit @ unit.T


def picture(page, role):
    return page.locator(f"#matrix-{role} canvas").evaluate("canvas => canvas.toDataURL()")


def move_to(page, index):
    """The slider to a save time, by keyboard."""
    page.locator("#time").focus()
    page.keyboard.press("Home")
    for _ in range(index):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"#matrices[data-moment='{index}']")


def shown_values(page):
    """The words under the matrices: tokens and the value in each matrix."""
    text = page.locator("#pair").inner_text().replace("−", "-")
    # Names hold anything: values are what stands after the last ": ".
    names, values = text.rsplit(": ", 1)
    return names, {name: float(value) for name, value in re.findall(r"(\S+) (-?[\d.]+)(?:, |$)", values)}


def test_the_page_opens_without_complaint_or_request(opened):
    page = opened()
    assert page.locator("#interactive").is_visible()
    assert page.locator("#too-old").is_hidden()
    assert page.evaluate("window.hacked") is None
    assert page.locator("#panels figure").count() == 4


def test_the_slider_moves_both_matrices_to_the_numbers_of_the_trajectories(opened):
    similarity, trainings, flows = runs()
    page = opened()
    page.locator("#matrix-trained .matrix").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")  # row 1, column 2
    seen = []
    for index in (0, 3, 8):
        move_to(page, index)
        seen.append([picture(page, role) for role in ("signature", "predicted", "trained")])
        names, values = shown_values(page)
        assert names == f"{HOSTILE[1]} × {HOSTILE[2]}"
        # Four decimals are shown, of 16 bits.
        assert values["signature"] == pytest.approx(similarity.matrix[1, 2], abs=1e-4)
        assert values["sgd-0.1"] == pytest.approx(cosines(trainings[0]["E"].values[index])[1, 2], abs=1e-4)
        assert values["exact"] == pytest.approx(cosines(flows[0]["E"].values[index])[1, 2], abs=1e-4)
        time = f"t = {TIMES[index]:g}"
        assert page.locator("#matrix-predicted figcaption").inner_text().splitlines()[1].startswith(time)
        assert page.locator("#time").get_attribute("aria-valuetext") == time
        upper = np.triu_indices(7, k=1)
        found = np.corrcoef(cosines(trainings[0]["E"].values[index])[upper], similarity.matrix[upper])[0, 1]
        assert f"Pearson {found:.3f}".replace("-", "−") in page.locator("#matrix-trained figcaption").inner_text()
    signatures, predicted, trained = zip(*seen, strict=True)
    assert len(set(signatures)) == 1
    assert len(set(predicted)) == 3 and len(set(trained)) == 3


def test_the_colour_of_a_cell_is_that_of_its_value(opened):
    page = opened(device_scale_factor=2)
    move_to(page, 8)
    canvas = page.locator("#matrix-trained canvas")
    width = canvas.evaluate("canvas => canvas.clientWidth")
    assert canvas.evaluate("canvas => canvas.width") == 2 * width
    margin, side = 46, width - 46
    low = min(cosines(run["E"].values[k]).min() for group in runs()[1:] for run in group for k in range(len(run.times)))
    low = min(low, runs()[0].matrix.min())
    cells = ((0, 1), (5, 2), (3, 3))
    places = [(2 * (margin + (column + 0.5) * side / 7), 2 * (row + 0.5) * side / 7) for row, column in cells]
    pixels = canvas.evaluate(
        "(canvas, places) => { const w = canvas.width, all = canvas.getContext('2d').getImageData(0, 0, w, w).data;"
        "return places.map(([x, y]) => [...all.slice(4 * (Math.floor(y) * w + Math.floor(x))).slice(0, 3)]) }",
        places,
    )
    for (row, column), pixel in zip(cells, pixels, strict=True):
        share = (cosines(runs()[1][0]["E"].values[8])[row, column] - low) / (1 - low)
        wanted = 255 * np.array(colormaps["viridis"](share)[:3])
        np.testing.assert_allclose(pixel, wanted, atol=4)


def test_another_prediction_can_be_chosen_and_an_ended_one_says_so(opened):
    page = opened()
    move_to(page, 2)
    before = picture(page, "predicted")
    page.locator("#matrix-predicted select").select_option(label="expanded")
    page.locator("#matrix-predicted figcaption", has_text="expanded").wait_for()
    assert picture(page, "predicted") != before
    move_to(page, 8)
    assert "ended at t = 15" in page.locator("#matrix-predicted figcaption").inner_text()
    page.locator("#matrix-trained .matrix").focus()
    page.keyboard.press("ArrowRight")
    assert "expanded –" in page.locator("#pair").inner_text()


def test_curves_and_quantities_are_switched_on_and_off(opened):
    page = opened()
    curve = page.locator("#panel-loss [data-run='exact']")
    assert curve.count() == 1
    box = page.locator("#switch-runs label", has_text="exact").locator("input")
    box.uncheck()
    assert curve.count() == 0
    assert page.locator("#panel-loss [data-run='sgd-0.1']").count() == 1
    assert "exact" not in page.locator("#read-loss").inner_text()
    assert page.locator("[data-run='exact']").count() == 0  # in no panel
    box.check()
    assert curve.count() == 1
    for switch, key in (("Loss", "loss"), ("Error", "error"), ("Norms", "norm"), ("Alignment", "alignment")):
        panel = page.locator(f"#panel-{key}")
        assert panel.is_visible()
        page.locator("#switch-panels label", has_text=switch).locator("input").uncheck()
        assert panel.is_hidden()
    page.locator("#switch-panels label", has_text="Loss").locator("input").check()
    assert page.locator("#panel-loss svg path").count() == 4


def test_a_pointer_shows_names_and_values(opened):
    page = opened()
    move_to(page, 4)
    field = page.locator("#matrix-trained .matrix")
    field.scroll_into_view_if_needed()
    box = field.bounding_box()
    margin, side = 46, box["width"] - 46
    page.mouse.move(box["x"] + margin + 6.5 * side / 7, box["y"] + 0.5 * side / 7)
    value = cosines(runs()[1][0]["E"].values[4])[0, 6]
    tip = page.locator("#tooltip")
    assert tip.is_visible()
    assert tip.inner_text().replace("−", "-") == f"{HOSTILE[0]} × {HOSTILE[6]}\nsgd-0.1: {value:.4f}"
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    plot = page.locator("#panel-loss .plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 62 + (box["width"] - 74) / 4, box["y"] + 100)
    at = tip.inner_text().splitlines()
    assert at[0] == "t = 10" and at[1] == f"sgd-0.1 {float(runs()[1][0]['loss'].values[2]):.4g}"
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector("#matrices[data-moment='2']")


def test_everything_is_reached_by_keyboard_with_a_visible_focus(opened):
    page = opened()
    seen = []
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(
            "(() => { const e = document.activeElement, s = getComputedStyle(e);"
            "return [e.id || e.className || e.tagName, e.closest('figure')?.id || '', s.outlineStyle, s.outlineWidth,"
            " (e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent || '').trim().length] })()"
        )
        if found[0] == "BODY":
            break
        seen.append(found)
    names = [name for name, *_ in seen]
    assert {"skip", "theme", "time", "play", "SELECT"} <= set(names)
    assert {f"matrix-{role}" for role in ("signature", "predicted", "trained")} <= {where for _, where, *_ in seen}
    assert {f"panel-{key}" for key in ("loss", "error", "norm", "alignment")} <= {where for _, where, *_ in seen}
    assert names.count("INPUT") == 8
    for name, _, style, width, label in seen:
        assert style != "none" and width != "0px" and label > 0, name
    # Curves move the time, and say where they are.
    move_to(page, 3)
    page.locator("#panel-norm .plot").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#matrices[data-moment='4']")
    assert page.locator("#read-norm").inner_text().startswith("t = 20: sgd-0.1 ")
    assert page.locator("#read-norm").get_attribute("aria-live") == "polite"
    page.keyboard.press("End")
    page.wait_for_selector("#matrices[data-moment='8']")
    assert page.locator("#time").input_value() == "8"
    page.locator("#matrix-signature .matrix").focus()
    page.keyboard.press("End")
    page.keyboard.press("PageDown")
    assert shown_values(page)[0] == f"{HOSTILE[6]} × {HOSTILE[6]}"
    assert set(shown_values(page)[1].values()) == {1.0}
    page.keyboard.press("Escape")
    assert page.locator("#pair").inner_text().startswith("Move over a matrix")


def test_light_and_dark(opened):
    def ground(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light, dark = "rgb(252, 252, 251)", "rgb(22, 24, 26)"
    page = opened(color_scheme="dark")
    assert ground(page) == dark
    before = picture(page, "trained")
    page.locator("#theme").click()
    assert ground(page) == light and page.locator("#theme").inner_text() == "Theme: light"
    assert picture(page, "trained") != before  # the names of the tokens
    page = opened(color_scheme="light")
    assert ground(page) == light
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert ground(page) == dark and page.locator("#theme").inner_text() == "Theme: dark"
    page.locator("#theme").click()
    assert ground(page) == light and page.locator("#theme").inner_text() == "Theme: automatic"


def test_hostile_names_are_text(opened):
    page = opened()
    page.locator("#matrix-trained .matrix").focus()
    texts = []
    page.keyboard.press("Home")
    for _ in HOSTILE:
        texts.append(page.locator("#pair").text_content().removeprefix(f"{HOSTILE[0]} × "))
        page.keyboard.press("ArrowRight")
    assert all(text.startswith(f"{name}: signature ") for text, name in zip(texts, HOSTILE, strict=True))
    assert page.evaluate("window.hacked") is None
    # Nothing but what we made.
    assert page.locator("script").count() == 2
    assert page.locator("#interactive img").count() == 0


def test_play_moves_the_time_and_less_motion_hides_it(opened):
    page = opened()
    move_to(page, 0)
    play = page.locator("#play")
    play.click()
    assert play.inner_text() == "Pause"
    page.wait_for_selector("#matrices[data-moment='8']")
    assert play.inner_text() == "Play"
    still = opened(reduced_motion="reduce")
    assert still.locator("#play").is_hidden()
    assert still.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    move_to(still, 5)


def test_without_javascript_the_page_is_whole_and_still(opened):
    page = opened(ready=False, java_script_enabled=False)
    assert page.locator("#figures img").first.is_visible()
    assert page.locator("#claims table").first.is_visible() and page.locator("math").first.is_visible()
    for hidden in ("#interactive", "#theme", "a[href='#interactive']", "#too-old"):
        assert page.locator(hidden).count() == 1 and page.locator(hidden).is_hidden()


def test_a_browser_too_old_for_them_keeps_the_still_figures(opened):
    page = opened(ready=False, before="delete window.DecompressionStream")
    assert page.locator("#too-old").is_visible()
    assert page.locator("#interactive").is_hidden() and page.locator("#figures img").first.is_visible()
    assert page.locator("#theme").is_visible()


@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_is_wider_than_the_window(opened, width):
    page = opened(viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    boxes = page.locator(".matrix:visible, .plot:visible").evaluate_all(
        "all => all.map(e => { const b = e.getBoundingClientRect(); return [b.left, b.right, b.width] })"
    )
    assert len(boxes) == 7
    assert all(left >= 0 and right <= width and size > 200 for left, right, size in boxes)
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_selector("#panel-loss svg[width='368']", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_one_snapshot_without_any_flow_opens_too(browser, tmp_path):
    similarity, trainings, _ = runs(times=TIMES[:1])
    file = tmp_path / "one.html"
    file.write_text(render(SUMMARY, [], data_of(similarity, trainings[:1], [])), encoding="utf-8")
    one = Opened(browser, file)
    page = one.open()
    assert page.locator("#matrix-predicted").is_hidden() and page.locator("#play").is_hidden()
    assert page.locator("#matrix-trained").is_visible() and page.locator("#panels figure").count() == 3
    page.locator("#matrix-trained .matrix").focus()
    page.keyboard.press("ArrowRight")
    value = cosines(trainings[0]["E"].values[0])[0, 2]
    assert shown_values(page)[1]["sgd-0.1"] == pytest.approx(value, abs=1e-4)
    assert one.complaints == [] and one.loaded() == []
    one.context.close()


def test_200_tokens_at_100_times_stay_below_10_mb(browser, tmp_path):
    """Its time to open is measured by `make bench`; here it opens and moves."""
    html = large_page()
    assert len(html.encode()) < 10e6
    file = tmp_path / "large.html"
    file.write_text(html, encoding="utf-8")
    large = Opened(browser, file)
    page = large.open()
    before = picture(page, "predicted"), picture(page, "trained")
    page.locator("#time").focus()
    page.keyboard.press("End")
    page.wait_for_selector("#matrices[data-moment='99']")
    assert (picture(page, "predicted"), picture(page, "trained")) != before
    assert large.complaints == [] and large.loaded() == []
    large.context.close()
