"""The page in headless Chromium, operated as a user would."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app.serving import Served
from app.settings import PageSettings
from app.training import Training, shown_command
from learners.inference.predictor import Predictor
from learners.rule.operating_points import OperatingPoints
from tests.app.conftest import asking
from tests.app.sites import MOMENT, strain, tone, with_points
from tests.app.test_labels import of_several, run_of
from tests.chromium import chromium
from tests.pictures import write_pictures

pytestmark = [pytest.mark.slow, pytest.mark.forks]

WAIT = 60_000
#: The lowest contrast of any visible text against its background (WCAG 2, 1.4.3).
CONTRAST = """() => {
  const parse = c => { const v = c.match(/[\\d.]+/g).map(Number); return v.length > 3 ? v : [...v, 1] };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3]));
  const lum = c => { const v = c.slice(0, 3).map(x => x / 255).map(
      x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2] };
  const behind = e => { const layers = [];
    for (let n = e; n; n = n.parentElement) {
      const s = getComputedStyle(n), c = parse(s.backgroundColor);
      if (c[3] > 0) layers.push(c); if (c[3] === 1) break }
    return layers.reverse().reduce((b, a) => over(a, b), [255, 255, 255]) };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.textContent.trim() || !e.checkVisibility({opacityProperty: true, visibilityProperty: true})
        || e.closest('[disabled], [aria-hidden=true], style, script, noscript')) continue;
    const box = e.getBoundingClientRect(); if (box.width < 2 || box.height < 2) continue;
    const s = getComputedStyle(e), b = behind(e);
    const ink = over(parse(e.closest('svg') ? s.fill : s.color), b);
    const [x, y] = [lum(ink), lum(b)].sort((p, q) => q - p);
    const size = parseFloat(s.fontSize), large = size >= 24 || (size >= 18.6 && s.fontWeight >= 700);
    const least = large ? 3 : 4.5, ratio = (x + .05) / (y + .05);
    if (ratio < least) found.push(`${ratio.toFixed(2)} ${n.textContent.trim().slice(0, 40)} `
      + `<${e.tagName} ${e.className.baseVal ?? e.className}>`) }
  return found }"""


#: Texts of drawings that are cut off at an edge.
CUT_OFF = """() => [...document.querySelectorAll('svg[viewBox] text')].filter(t => {
  if (!t.checkVisibility()) return false;
  const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();
  return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1
}).map(t => t.textContent)"""


@pytest.fixture(scope="module")
def browser(up):  # up first, so that the processes it starts do not hold the browser's pipes
    with chromium() as running:
        yield running


@pytest.fixture
def open_pages(browser, up):
    """Open the page; fail on console errors and on requests to other hosts."""
    contexts, errors = [], []

    def open_page(**options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda r: None if _own(r.url, up.url) else errors.append(r.url))
        page.goto(up.url)
        page.wait_for_selector("#file-0 input[type=file]", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not errors


@pytest.fixture
def pictures(tmp_path):
    folder = write_pictures(tmp_path / "queries", per_class=2, unknown=2)
    return {
        name: [str(path) for path in sorted((folder / name).glob("*.jpg"))]
        for name in ("red", "green", "blue", "unknown")
    }


def _own(address: str, url: str) -> bool:
    return address.startswith((url, "data:", "blob:"))


def choose(page, file: str, number: int = 0) -> None:
    page.locator(f"#file-{number} input[type=file]").set_input_files(file)


def model(page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def shows(page, words: str | re.Pattern) -> None:
    from playwright.sync_api import expect

    expect(page.locator(".sh-label:visible")).to_have_text(words, timeout=WAIT)


def drawn(page, count: int) -> None:
    from playwright.sync_api import expect

    expect(page.locator(".sh-panel:visible")).to_have_count(count, timeout=WAIT)


def fits(page) -> None:
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_photo(open_pages, pictures):
    page = open_pages()
    choose(page, pictures["red"][0])
    shows(page, "red")
    assert page.locator(".sh-top li:visible").count() == 3
    drawn(page, 2)
    assert page.get_by_role("img", name="Where it looked for “red”").is_visible()
    page.get_by_role("button", name="green", exact=True).click()  # an example from its run
    shows(page, "green")


def test_a_pool_is_searched_and_labelled_by_keys(open_pages, pictures, up):
    page = open_pages()
    assert not page.get_by_role("button", name="More like this").is_visible()
    choose(page, pictures["red"][0])
    shows(page, "red")
    drawn(page, 2)
    page.get_by_role("button", name="More like this").click()
    assert (
        page.locator(".sh-alike figure").first.inner_text().endswith(("red_000.jpg", "red_001.jpg"))
    )
    page.get_by_role("tab", name="Label").click()
    turn = page.locator("#label-shown [data-turn]")

    def press(key: str) -> None:
        before = turn.get_attribute("data-turn")
        page.keyboard.press(key)
        page.locator(f"#label-shown [data-turn]:not([data-turn='{before}'])").wait_for()

    def kept() -> list[str]:
        return pd.read_csv(up.folder / "kept" / "new-labels.csv")["label"].tolist()

    turn.get_by_text("0 of 7").wait_for()
    page.keyboard.press("4")  # there is no fourth class
    press("2")
    press("u")
    assert kept() == ["green", "unknown"]
    press("z")
    assert kept() == ["green"]
    skipped = turn.locator("img").get_attribute("src")
    press("s")
    turn.get_by_text("1 of 7 labelled, 1 skipped.").wait_for()
    assert turn.locator("img").get_attribute("src") != skipped
    page.keyboard.press("/")
    page.keyboard.type("u21")  # keys typed into a field are no shortcuts
    page.get_by_role("button", name="Use this label").press("Enter")
    turn.get_by_text("2 of 7").wait_for()
    assert kept() == ["green", "u21"]
    assert turn.locator("img").count() == 1
    assert page.evaluate(CONTRAST) == []
    page.reload()
    page.get_by_role("tab", name="Label").click()
    turn.get_by_text("2 of 7").wait_for()


def test_several_labels_or_none_are_given_by_keys_and_as_a_correction(browser, tmp_path):
    """Keys choose labels and take them back, and one saves them; nothing is saved that contradicts itself."""
    from app.server import serve

    model = run_of(tmp_path / "run", of_several(), ["blue"] * 8 + ["green"] * 8 + ["red"] * 8)
    pool = write_pictures(tmp_path / "new", per_class=1, size=44)
    settings = PageSettings(port=0, feedback=tmp_path / "kept", added=asking(label=pool))
    models = {"run": Served("run", Predictor(model), model, settings)}

    def kept(name: str) -> list[str]:
        return pd.read_csv(tmp_path / "kept" / name)["label"].tolist()

    with serve(models, settings) as url:
        page = browser.new_page()
        page.goto(url)
        choose(page, sorted(pool.glob("red/*"))[0])
        shows(page, "red")
        page.get_by_role("button", name="This is wrong").click()
        field = page.get_by_label("It is").first
        for name in ("red", "blue"):
            field.fill(name)
            field.press("Enter")
        page.get_by_role("button", name="Save the correction").click()
        page.get_by_text("Saved. Thank you.").wait_for()
        assert kept("feedback.csv") == ["blue|red"]
        page.get_by_role("tab", name="Label").click()
        turn = page.locator("#label-shown [data-turn]")
        turn.get_by_text("0 of 3").wait_for()
        for key in "1322":
            page.keyboard.press(key)
        page.locator("#label-other").get_by_text("red").wait_for()
        page.keyboard.press("n")
        page.get_by_text("It cannot be none and have another label").wait_for()
        page.keyboard.press("Enter")
        turn.get_by_text("1 of 3").wait_for()
        page.keyboard.press("n")
        turn.get_by_text("2 of 3").wait_for()
        assert kept("new-labels.csv") == ["blue|red", "none"]
        assert page.evaluate(CONTRAST) == []
        page.close()


def test_unknown_and_the_slider(open_pages, pictures):
    page = open_pages()
    choose(page, pictures["unknown"][0])
    shows(page, "unknown")
    assert "Not sure enough" in page.locator(".sh-words:visible").inner_text()
    slider = page.get_by_role("slider", name="Threshold").first
    by_model = page.get_by_label("The model's rule").first
    assert by_model.is_checked()
    slider.focus()
    page.keyboard.press("Home")
    shows(page, re.compile("blue|green|red"))
    assert not by_model.is_checked()
    page.get_by_text(
        "Your rule: the model answers if it is at least 0\u00a0% sure"
    ).first.wait_for()
    page.keyboard.press("End")
    shows(page, "unknown")
    by_model.check()
    page.get_by_text("The model's rule: it answers if it is at least 80.0").first.wait_for()
    assert float(slider.input_value()) == 0.8


def test_the_slider_over_rules(browser, tmp_path):
    """By keyboard, a looser rule answers a refused file, and the stricter one refuses it again."""
    from playwright.sync_api import expect

    from app.server import serve

    files = sorted(write_pictures(tmp_path / "data", per_class=24).glob("*/*.jpg"))[::2]
    bundle = with_points(files, np.array([file.parent.name for file in files]))
    table = OperatingPoints.read(bundle.metrics)
    served = Served("points", Predictor(bundle))
    refused = next(a for a in served.predictor.predict(files) if a.reason == "unusual")
    with serve({"points": served}) as url:
        page = browser.new_page()
        page.goto(url)
        slider = page.get_by_role("slider", name="Refuse more ↔ answer more")
        choose(page, refused.path)
        shows(page, "unknown")
        slider.press("End")
        shows(page, refused.best)
        message = page.get_by_role("status").filter(has_text="calibration files")
        expect(message).to_contain_text(f"It answers {table.points[-1].answered} of 36")
        assert page.get_by_text(table.points[-1].rule).is_visible()
        slider.press("Home")
        shows(page, "unknown")
        expect(message).to_contain_text(f"It answers {table.points[0].answered} of 36")
        page.get_by_label("The model's rule").press(" ")
        expect(message).to_contain_text(f"It answers {table.own.answered} of 36")
        assert float(slider.input_value()) == table.default + 1
        assert page.evaluate(CONTRAST) == []
        page.close()


def test_a_rule_on_another_score_and_the_way_back_to_it(open_pages, pictures, up):
    """The rule of the tab *One file* applies to several files too; a broken file is not unknown."""
    page = open_pages()
    model(page, "strict")
    wrong = up.folder / "wrong.jpg"
    wrong.write_text("no picture")
    files = [*pictures["red"], *pictures["green"], pictures["unknown"][0]]
    expected = list(Predictor(up.folder / "strict" / "model").predict(files))
    answered = sum(answer.label != "unknown" for answer in expected)
    assert 0 < answered < 5

    def counted(count: int, rule: str) -> None:
        """Check that the table and the slider's text follow this rule."""
        page.locator(".sh-note:visible", has_text=rule).first.wait_for()
        page.get_by_role("tab", name="Several files").last.click()
        words = f"6 files: {count} answered, {5 - count} unknown, 1 could not be used."
        page.get_by_text(words).wait_for()
        page.locator(".sh-note:visible", has_text=rule).wait_for()
        page.get_by_role("tab", name="One file").last.click()

    page.get_by_role("tab", name="Several files").last.click()
    page.locator("#files-3 input[type=file]").set_input_files([*files, str(wrong)])
    page.get_by_role("region", name="Predictions").wait_for()
    page.get_by_role("tab", name="One file").last.click()
    words = "chosen for a target accuracy of 90.0"
    counted(answered, words)
    page.locator("input[type=range]:visible").focus()
    page.keyboard.press("Home")
    n_outliers = sum(answer.reason == "out of distribution" for answer in expected)
    counted(5 - n_outliers, "Your rule: the model answers if it is at least 0\u00a0% sure")
    page.locator("input[type=checkbox]:visible").check()
    counted(answered, words)
    page.locator("input[type=number]:visible").fill("1")
    counted(0, "Your rule: the model answers if it is at least 100\u00a0% sure")
    assert not page.locator("input[type=checkbox]:visible").is_checked()


def test_a_long_sound(open_pages, tmp_path, up):
    from playwright.sync_api import expect

    page = open_pages(viewport={"width": 390, "height": 850})
    model(page, "tones")
    choose(page, str(tone(tmp_path / "a.wav", "low", "low", "low", "high", "high")), 1)
    shows(page, "2 events: low 1, high 1")
    drawn(page, 2)
    fits(page)
    assert "time in the recording (s)" in page.locator(".sh-panel:visible").first.inner_html()
    assert page.locator(".sh-strip:visible g").count() > 4
    page.get_by_text("As a table").click()
    rows = page.locator("details table tbody tr:visible")
    assert "low" in rows.first.inner_text()
    assert "high" in rows.last.inner_text()
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(CUT_OFF) == []
    best = page.locator(".sh-top:visible .sh-name").first.inner_text()
    expect(page.get_by_label("Window shown")).to_have_value(f"the one most certain of {best}")
    page.get_by_label("Window shown").click()
    page.get_by_role("option").last.click()
    page.wait_for_function("document.querySelector('.sh-panel figcaption').innerText")
    page.locator(".sh-panel:visible", has_text="looked for “high”").wait_for()
    page.get_by_text("This is wrong").locator("visible=true").click()
    page.get_by_label("Only the window shown").locator("visible=true").check()
    page.get_by_label("It is").locator("visible=true").first.fill("low")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Save the correction").locator("visible=true").click()
    page.get_by_text("Saved. Thank you.").locator("visible=true").wait_for()
    row = pd.read_csv(up.folder / "kept" / "feedback.csv").iloc[-1]
    last = next(up.models["tones"].predictor.predict([str(tmp_path / "a.wav")])).windows[-1].part
    assert (row["label"], row["start"], row["end"]) == ("low", last.start, last.end)


def test_strain_at_its_loudest_and_at_a_moment(open_pages, tmp_path):
    page = open_pages()
    model(page, "bursts")
    choose(page, str(strain(tmp_path / "a.hdf5")), 2)
    drawn(page, 5)
    svg = page.locator(".sh-panel:visible").first.inner_html()
    assert f"GPS {MOMENT:.1f}" in svg
    assert "frequency (Hz)" in svg
    assert page.evaluate(CUT_OFF) == []
    gps = page.locator("input[type=number]:visible").first
    gps.fill(str(MOMENT - 1))
    gps.press("Enter")
    page.locator(".sh-panel:visible", has_text=f"GPS {MOMENT - 1:.3f}").first.wait_for()
    gps.fill("5")
    gps.press("Enter")
    shows(page, "no answer")
    assert "GPS 5.000 is outside" in page.locator(".sh-words:visible").inner_text()


def test_several_files_make_a_table_and_a_csv(open_pages, pictures, tmp_path, up):
    from playwright.sync_api import expect

    page = open_pages()
    page.get_by_role("tab", name="Several files").click()
    wrong = tmp_path / "wrong.jpg"
    wrong.write_text("no picture")
    files = [pictures["red"][0], pictures["blue"][1], str(wrong)]
    page.locator("#files-0 input[type=file]").set_input_files(files)
    page.get_by_role("region", name="Predictions").wait_for()
    rows = page.locator(".sh-wide:visible tbody tr")
    assert rows.count() == 3
    assert "This file cannot be used: not a picture" in rows.last.inner_text()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    frame = pd.read_csv(download.value.path())
    assert frame["path"].tolist() == ["red_000.jpg", "blue_001.jpg", "wrong.jpg"]
    assert frame["label"].tolist() == ["red", "blue", "unknown"]
    # Correct a label by keyboard: type to select the file, then the class.
    page.get_by_text("Correct the table").first.click()
    for field, text, chosen in (
        ("Row", "blue_0", "2: blue_001.jpg"),
        ("Right label", "gre", "green"),
    ):
        box = page.get_by_label(field, exact=True).first
        box.fill(text)
        page.get_by_role("option", name=chosen).wait_for()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(box).to_have_value(chosen)
    page.get_by_role("button", name="Correct", exact=True).first.press("Enter")
    page.get_by_text("green, corrected").first.wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download as CSV").click()
    frame = pd.read_csv(download.value.path())
    assert frame["label"].tolist() == ["red", "green", "unknown"]
    assert frame["best"].tolist()[:2] == ["red", "blue"]
    row = pd.read_csv(up.folder / "kept" / "feedback.csv").iloc[-1]
    assert (row["label"], row["predicted"], row["model"]) == ("green", "blue", "colours")


def test_a_wrong_file_and_a_correction(open_pages, pictures, tmp_path, up):
    from playwright.sync_api import expect

    page = open_pages()
    wrong = tmp_path / "<img src=x onerror=alert(1)>.jpg"
    wrong.write_text("no picture")
    model(page, "bursts")
    choose(page, str(wrong), 2)
    shows(page, "no answer")
    assert not page.get_by_text("This is wrong").is_visible()
    assert "This file cannot be used" in page.locator(".sh-words:visible").inner_text()
    model(page, "colours")
    choose(page, pictures["red"][1])
    shows(page, "red")
    page.get_by_role("slider", name="Threshold").first.focus()
    page.keyboard.press("End")
    shows(page, "unknown")
    page.get_by_text("This is wrong").first.click()
    page.get_by_label("It is").first.fill("teal")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Save the correction").first.click()
    page.get_by_text("A new class needs at least 2 files").wait_for()
    page.get_by_role("button", name="Predict").first.click()
    page.get_by_text("A new class needs at least 2 files").wait_for(state="detached")
    expect(page.get_by_label("It is").first).to_have_value("")
    page.get_by_label("It is").first.fill("blue")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Save the correction").first.click()
    page.get_by_text("Saved. Thank you.").wait_for()
    command = page.locator(".sh-command:visible", has_text="learners.finetune").inner_text()
    assert "--from '…/model' --data '…/feedback.csv'" in command
    assert str(up.folder) not in page.content()
    row = pd.read_csv(up.folder / "kept" / "feedback.csv").iloc[-1]
    assert (row["label"], row["predicted"], row["model"]) == ("blue", "unknown", "colours")
    assert (row["best"], Path(row["path"]).name) == ("red", Path(pictures["red"][1]).name)
    assert (up.folder / "kept" / row["path"]).read_bytes() == Path(pictures["red"][1]).read_bytes()


def test_a_folder_is_looked_at_and_a_second_training_is_refused(browser, tmp_path):
    """On a page without a model, while another page of the same folder trains."""
    from app.server import serve

    training = Training(tmp_path / "runs")
    photos = write_pictures(tmp_path / "photos", per_class=5)
    with (
        serve({}, PageSettings(port=0, train=tmp_path / "runs")) as url,
        open(training._lock, "rb") as lock,
    ):
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(url)
        page.get_by_label("Folder on this machine").fill(str(photos))
        page.get_by_role("button", name="Look at it").click()
        page.get_by_text("photos: 15 picture files of 3 classes").wait_for()
        assert page.locator("#look img").count() == 3
        page.get_by_label("quick:").check()
        page.get_by_text(shown_command(training.words([photos], "quick"))).wait_for()
        assert page.evaluate(CONTRAST) == []
        fcntl.flock(lock, fcntl.LOCK_EX)
        page.get_by_role("button", name="Start the training").click()
        page.get_by_text("One training runs already").wait_for()
        page.close()


def test_two_tabs_do_not_mix(open_pages, pictures):
    one, two = open_pages(), open_pages()
    choose(one, pictures["red"][0])
    choose(two, pictures["blue"][0])
    shows(one, "red")
    one.get_by_role("slider", name="Threshold").first.press("End")
    shows(two, "blue")


@pytest.mark.parametrize(
    ("width", "schemes"), [(390, ("light", "dark")), (1600, ("dark", "light"))]
)
def test_narrow_and_wide_light_and_dark(open_pages, pictures, width, schemes):
    """The page follows the scheme of the device, from its start and when that changes."""
    page = open_pages(viewport={"width": width, "height": 850}, color_scheme=schemes[0])

    def seen(scheme):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(
            "dark => document.body.classList.contains('dark') === dark", arg=scheme == "dark"
        )
        page.wait_for_timeout(300)  # colours change slowly
        fits(page)
        assert page.evaluate(CONTRAST) == []

    fits(page)
    choose(page, pictures["green"][0])
    shows(page, "green")
    drawn(page, 2)
    for scheme in schemes:
        seen(scheme)
    top = page.locator(".sh-answer:visible").bounding_box()["y"]
    assert 0 < top < 850, "the answer is seen without scrolling"
    if not page.locator("button[role=tab]:visible", has_text="About this model").count():
        page.locator("button[aria-label='More tabs']:visible").last.click()
    page.locator("button:visible", has_text="About this model").last.click()
    report = page.frame_locator("iframe[title='Report of the run']")
    report.get_by_text("the figures of this run").wait_for()
    for scheme in reversed(schemes):
        seen(scheme)


def test_by_keyboard_alone(open_pages, pictures):
    """Tab reaches the file button, the slider and the tabs; Enter and arrow keys work there."""
    from playwright.sync_api import Error

    page = open_pages()

    def tab_to(description: str, test: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(f"(() => {{ const e = document.activeElement; return {test} }})()"):
                return
        raise AssertionError(f"Tab never reaches {description}")

    for attempt in range(8):  # while it loads, the page is redrawn and loses focus
        page.wait_for_timeout(300)
        tab_to("the upload", "!!e.closest('#file-0') && !e.closest('.source-selection')")
        try:
            with page.expect_file_chooser(timeout=5000) as chooser:
                page.keyboard.press("Enter")
            break
        except Error:
            assert attempt < 7, "Enter on the upload opens no file dialogue"
    chooser.value.set_files(pictures["blue"][0])
    shows(page, "blue")
    tab_to("the slider", "e.type === 'range'")
    page.keyboard.press("Home")
    tab_to("the examples", "e.innerText === 'red'")
    page.keyboard.press("Enter")
    shows(page, "red")
    page.get_by_role("tab", name="One file").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#files-0").wait_for()
