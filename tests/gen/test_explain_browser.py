"""Pages in headless Chromium: at the width of a desktop and of a telephone, light and dark, by mouse and by keyboard.

Screenshots are kept in `out/pages`; somebody should look at them now and then.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import convgen as cg
from convgen.explain.page import page
from convgen.explain.subject import of_problem

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (pip install 'convgen[dev]')")

KEPT = Path(__file__).parents[2] / "out" / "pages"
DEMO = "mb1ic64ih56oc64oh56kh3ph1"
SIZES = {"desktop": (1280, 900), "telephone": (390, 844)}

#: Elements whose own text is hard to read, by WCAG 2's ratio of luminances: less than 4.5.
PALE = """
const channels = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
function over(front, back) {
  const alpha = front.length > 3 ? front[3] : 1;
  return [0, 1, 2].map(n => front[n] * alpha + back[n] * (1 - alpha));
}
function ground(node) {
  const layers = [];
  for (let at = node; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((back, layer) => over(layer, back), [255, 255, 255]);
}
function light(colour) {
  const linear = colour.map(c => (c /= 255) <= .03928 ? c / 12.92 : Math.pow((c + .055) / 1.055, 2.4));
  return .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2];
}
const pale = {};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || node.closest("script, style, title, desc, .skip")) continue;
  if (node.closest("svg") && !node.matches(".ink")) continue;
  const back = ground(node), style = getComputedStyle(node);
  const front = over(channels(node.matches(".ink") ? style.fill : style.color), back);
  const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
  const ratio = (high + .05) / (low + .05);
  if (ratio < 4.5) pale[node.tagName + "." + node.className + " " + node.style.cssText] = ratio;
}
return pale;
"""


#: The pane of a row.
PANE = "return arguments[0].closest('.pane')"


def binary(*names: str) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium, driver = binary("chromium", "chromium-browser", "google-chrome"), binary("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with its driver (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--force-prefers-reduced-motion"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture(scope="module", params=["gfx942", "xehpc"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The page of the layer of `./dev demo`."""
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    path.write_text(page(of_problem(cg.Conv.parse(DEMO, dir="FWD_D", dt="f16"), request.param)))
    return request.param, path


def command(browser: Any, name: str, **arguments: Any) -> Any:
    return browser.execute_cdp_cmd(name, arguments)


def show(browser: Any, path: Path, width: int, height: int, scheme: str = "light") -> None:
    telephone = width < 500
    command(
        browser, "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=telephone
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    command(browser, "Emulation.setEmulatedMedia", features=[feature])
    browser.get(f"file://{path}")


def move_mouse_off_rows(browser: Any) -> None:
    """Move the mouse onto the contents, which stay where they are.

    Chromium repeats the last mouse event some time after the page has scrolled. Over a row of a pane that event would
    light up the row and scroll the opposite pane, perhaps between the look at a row's place there and a click on it.
    """
    webdriver.ActionChains(browser).move_to_element(browser.find_element("css selector", "nav")).perform()


def keep(browser: Any, name: str) -> None:
    """A screenshot of all that the page has to show, unless something is folded."""
    width, height = browser.execute_script("return [innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 16000), "scale": 1}
    shot = command(browser, "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
    print(f"kept {KEPT / name}.png")


@pytest.mark.parametrize(("size", "scheme"), [("desktop", "dark"), ("telephone", "light")])
def test_the_page_fits_and_can_be_read(browser: Any, made: tuple[str, Path], size: str, scheme: str) -> None:
    fits(browser, made, size, scheme)


@pytest.mark.sweep
@pytest.mark.parametrize(("size", "scheme"), [("desktop", "light"), ("telephone", "dark")])
def test_the_page_fits_otherwise_too(browser: Any, made: tuple[str, Path], size: str, scheme: str) -> None:
    fits(browser, made, size, scheme)


def fits(browser: Any, made: tuple[str, Path], size: str, scheme: str) -> None:
    """Nothing is cut off or pale, and the console is empty."""
    target, path = made
    show(browser, path, *SIZES[size], scheme)
    sizes = "const e = document.documentElement; return [e.scrollWidth, e.clientWidth, innerWidth]"
    width, inner, window = browser.execute_script(sizes)
    assert width == inner <= window == SIZES[size][0]
    wide = "return [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, .skip, nav')"
    wide += " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    assert browser.execute_script(wide) == []
    assert browser.execute_script(PALE) == {}
    assert browser.get_log("browser") == []
    keep(browser, f"{target}-{size}-{scheme}")


def test_lines_of_assembly_and_ir_light_up_together(browser: Any, made: tuple[str, Path]) -> None:
    show(browser, made[1], *SIZES["desktop"])
    row = browser.find_elements("css selector", ".pane tr[data-l]")[300]
    line = row.get_attribute("data-l")
    command(browser, "Page.bringToFront")
    move_mouse_off_rows(browser)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", row)
    webdriver.ActionChains(browser).move_to_element(row).perform()
    lit = browser.find_elements("css selector", "tr.with")
    assert {other.get_attribute("data-l") for other in lit} == {line}
    panes = {browser.execute_script("return arguments[0].closest('.pane').ariaLabel", other) for other in lit}
    assert len(panes) == 2
    there = lit[-1]
    inside = (
        "const p = arguments[0].closest('.pane').getBoundingClientRect(), r = arguments[0].getBoundingClientRect();"
    )
    assert browser.execute_script(f"{inside} return r.top >= p.top && r.bottom <= p.bottom", there)
    link = there.find_element("css selector", "a")
    browser.execute_script("arguments[0].focus()", link)
    assert browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_a_click_pins_a_line_and_shows_where_it_comes_from(browser: Any, made: tuple[str, Path]) -> None:
    show(browser, made[1], *SIZES["desktop"])
    assembly, ir = browser.find_elements("css selector", ".pane")[:2]
    for pane, opposite in ((assembly, ir), (ir, assembly)):
        rows = pane.find_elements("css selector", "tr[data-l]")
        row, elsewhere = rows[len(rows) // 2], rows[len(rows) // 2 + 1]
        line = row.get_attribute("data-l")
        move_mouse_off_rows(browser)
        browser.execute_script("arguments[0].scrollTop = 0", opposite)
        browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", row)
        browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        webdriver.ActionChains(browser).move_to_element(row).click().move_to_element(elsewhere).perform()
        lit = browser.find_elements("css selector", "tr.with")
        assert {other.get_attribute("data-l") for other in lit} == {line}
        assert browser.execute_script("return document.querySelector('tr.pinned')") == row
        there = next(other for other in lit if browser.execute_script(PANE, other) == opposite)
        box, place = opposite.rect, there.rect
        assert box["y"] <= place["y"] <= box["y"] + box["height"] - place["height"]
        webdriver.ActionChains(browser).send_keys("\ue00c").perform()  # Escape
        assert not browser.find_elements("css selector", "tr.pinned, tr.with")


@pytest.mark.parametrize("size", SIZES)
def test_the_contents_stay_in_view_and_tell_where_one_is(browser: Any, made: tuple[str, Path], size: str) -> None:
    show(browser, made[1], *SIZES[size])
    for entry in browser.find_elements("css selector", "nav a"):
        section = entry.get_attribute("href").partition("#")[2]
        browser.execute_script("document.getElementById(arguments[0]).scrollIntoView()", section)
        browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        nav = browser.execute_script("return document.querySelector('nav').getBoundingClientRect().toJSON()")
        heading = browser.execute_script("return document.getElementById(arguments[0]).offsetTop - scrollY", section)
        assert nav["top"] == 0
        assert heading >= nav["bottom"] or section == "glance"
        current = browser.find_element("css selector", "nav a[aria-current]")
        assert current.get_attribute("href").endswith(f"#{section}")
        where = "const r = arguments[0].getBoundingClientRect(); return [r.left, r.right]"
        left, right = browser.execute_script(where, current)
        assert left >= 0
        assert right <= SIZES[size][0]


def test_a_tile_is_looked_up(browser: Any, made: tuple[str, Path]) -> None:
    target, path = made
    show(browser, path, *SIZES["desktop"])
    m, n = (browser.find_element("name", name) for name in "mn")
    answer = browser.find_element("tag name", "output")
    for field, value in ((m, "3"), (n, "0")):
        field.clear()
        field.send_keys(value)
    # Four columns of tiles of 64 rows, with gaps behind lines, and one of 32.
    maker, last = {"gfx942": ("die 4, workgroup 12", 49), "xehpc": ("workgroup 3", 97)}[target]
    assert answer.text == f"Tile (3, 0): {maker}, round 0"
    n.clear()
    n.send_keys("5")
    assert answer.text.startswith(f"There is no tile (3, 5): M has tiles 0 to {last}, N 0 to ")


def test_what_is_folded_opens_for_a_link(browser: Any, made: tuple[str, Path]) -> None:
    show(browser, made[1], *SIZES["desktop"])
    step = browser.find_element("id", "step-0-lower_tiles")
    assert step.get_attribute("open") is None
    link = browser.find_element("css selector", 'a[href="#step-0-lower_tiles"]')
    browser.execute_script("arguments[0].click()", link)
    opened = "const [e, done] = arguments; e.open ? done() : e.addEventListener('toggle', done)"
    browser.execute_async_script(opened, step)
    assert step.get_attribute("open") is not None


def test_the_page_is_readable_without_scripts(browser: Any, made: tuple[str, Path]) -> None:
    command(browser, "Emulation.setScriptExecutionDisabled", value=True)
    try:
        show(browser, made[1], *SIZES["telephone"])
        assert (
            "Which instruction waits longest" in browser.find_element("id", "glance").find_element("xpath", "..").text
        )
        assert not browser.find_element("css selector", "form.lookup").is_displayed()
        assert browser.find_element("css selector", ".pane").is_displayed()
    finally:
        command(browser, "Emulation.setScriptExecutionDisabled", value=False)


def test_the_first_stop_of_the_keyboard_leads_to_the_content(browser: Any, made: tuple[str, Path]) -> None:
    show(browser, made[1], *SIZES["desktop"])
    webdriver.ActionChains(browser).send_keys("\ue004").perform()  # Tab
    here = browser.switch_to.active_element
    assert here.get_attribute("href").endswith("#glance")
    assert here.rect["x"] >= 0


def test_nothing_is_cut_off_on_paper(browser: Any, made: tuple[str, Path]) -> None:
    show(browser, made[1], 794, 1123)  # A4 at 96 pixels an inch
    command(browser, "Emulation.setEmulatedMedia", media="print")
    wide = (
        "return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
    )
    assert browser.execute_script(f"{wide}.map(e => e.outerHTML.slice(0, 80))") == []
    assert not browser.find_element("css selector", "nav").is_displayed()
    command(browser, "Emulation.setEmulatedMedia", media="")
