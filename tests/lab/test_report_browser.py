"""The report in a real browser: it draws, it answers, it stays within its page and its window."""

import json
import os
import shutil
import threading
import time

import pytest
import torch
from large_store import made_attack, made_run
from made_store import add_divergence, add_failure, add_finding

from splash_units.lab import figures, tables
from splash_units.lab.report import render
from splash_units.lab.report.serving import serving
from splash_units.lab.spec import AttackSpec, TrainSpec
from splash_units.lab.store import Store

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
HOSTILE = "<script>alert(1)</script>"
WIDTHS = (390, 1400)

if not (CHROMIUM and DRIVER) and not os.environ.get("SPLASH_NEEDS_BROWSER"):
    pytest.skip(
        "chromium or chromedriver is not installed: apt-get install chromium chromium-driver",
        allow_module_level=True,
    )


def spec(unit, seed=0, model="lenet5", **fields):
    return TrainSpec(model=model, data="cifar-10", unit=unit, seed=seed, **fields)


def fill(store):
    for model in ("lenet5", "resnet20"):
        for unit in ("splash", "relu", "swish"):
            for seed in range(3):
                run = spec(unit, seed, model)
                made_run(store, run, epochs=12)
                for eps in (0.02, 0.04):
                    options = {"eps": eps}
                    made_attack(
                        store, AttackSpec(train=run, attack="fgsm", options=options, images=100)
                    )
    add_divergence(store, spec("relu", 8))
    add_failure(store, spec("swish", 9))
    add_pictures(store)
    # The catalogue refuses such a name, but a store may come from anywhere.
    made_run(store, spec(HOSTILE, model="tiny"), epochs=12)


def add_pictures(store):
    rows = torch.arange(3)
    clean = torch.rand(3, 3, 8, 8)
    add_finding(
        store,
        AttackSpec(train=spec("splash"), attack="pgd", options={"eps": 0.1}, images=3),
        {"images": 3, "attempts": 3, "fooled": 2, "robust_accuracy": 0.3, "success_at_l2": None},
        index=rows,
        fooled=rows < 2,
        labels=rows.clone(),
        prediction=rows + 1,
        probability_predicted=torch.full((3,), 0.75),
        clean=clean,
        images=(clean + 0.1).clamp(0, 1),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    fill(Store(folder / "runs"))
    path = folder / "report.html"
    path.write_text(render(Store(folder / "runs")), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = CHROMIUM
    # No sandbox: test machines are containers, often with root as the only user.
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def at(browser, page):
    """The page, freshly loaded, and the browser's logs empty before it."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    return browser


def wait(condition, what):
    """Whether something comes about; drawing waits for the eye."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def draw_everything(at):
    at.execute_script("dispatchEvent(new Event('beforeprint'))")
    count = at.execute_script("return document.querySelectorAll('[data-figure]').length")
    assert count >= 3
    drawn = "return document.querySelectorAll('[data-drawn] svg').length"
    wait(lambda: at.execute_script(drawn) == count, "not all figures were drawn")


def texts(at, selector):
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.trim())"
    return at.execute_script(script, selector)


def visible_runs(at):
    return at.execute_script(
        "return [...document.querySelectorAll('.runs tbody tr')].filter((r) => !r.hidden).length"
    )


def click(at, selector):
    at.execute_script("document.querySelector(arguments[0]).click()", selector)


def test_everything_is_drawn_without_an_error_or_a_request(at, page):
    draw_everything(at)
    assert at.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in at.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert page.as_uri() in asked
    assert [url for url in asked if not url.startswith(("data:", page.as_uri()))] == []


def test_a_hostile_name_stays_text(at):
    draw_everything(at)
    assert HOSTILE in texts(at, ".runs td")
    assert HOSTILE in texts(at, ".chip")
    assert any(HOSTILE in text for text in texts(at, "#player-run option"))
    assert any(HOSTILE in text for text in texts(at, "svg text title"))
    assert at.execute_script("return document.querySelectorAll('script').length") == 3


def test_the_page_forbids_what_it_does_not_need(at):
    """A script that got in all the same would not run, and could not send anything."""
    blocked = at.execute_async_script(
        """
        const [done] = arguments;
        const blocked = [];
        const note = (event) => blocked.push(event.violatedDirective);
        addEventListener('securitypolicyviolation', note);
        const script = document.createElement('script');
        script.textContent = 'window.ran = true';
        document.body.append(script);
        const image = new Image();
        image.src = 'https://example.org/x.png';
        const answer = () => done([window.ran ?? false, blocked]);
        fetch('https://example.org').catch(() => setTimeout(answer, 100));
        """
    )
    assert blocked[0] is False
    assert {directive.split("-")[0] for directive in blocked[1]} == {"script", "img", "connect"}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_overflows(at, width, theme):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    at.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    at.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    at.refresh()
    draw_everything(at)
    background = at.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (int(background[4:].split(",")[0]) < 100) == (theme == "dark")
    page = "document.documentElement"
    wide, room = at.execute_script(f"return [{page}.scrollWidth, {page}.clientWidth]")
    assert wide <= room <= width
    at.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    at.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_slider_plays_the_shapes(at):
    def shapes():
        script = "return [...document.querySelectorAll('.shape')].map((p) => p.getAttribute('d'))"
        return at.execute_script(script)

    def slide(moment):
        at.execute_script(
            "const s = document.getElementById('player-time'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('input'))",
            moment,
        )

    slide(0)
    first = shapes()
    assert texts(at, "#player-epoch") == ["epoch 0 of 12"]
    slide(12)
    assert all(a != b for a, b in zip(first, shapes(), strict=True))
    slide(9)
    click(at, "#player-play")
    wait(lambda: texts(at, "#player-epoch") == ["epoch 12 of 12"], "it did not play to the end")
    wait(lambda: "play" in texts(at, "#player-play")[0], "it did not stop at the end")


def test_filters_reach_charts_tables_and_shapes(at):
    draw_everything(at)
    everything = visible_runs(at)
    assert len(texts(at, "#curve-panels .panel")) >= 3
    click(at, 'input[name="model"][value="ResNet-20"]')
    click(at, 'input[name="unit"][value="SPLASH"]')
    assert visible_runs(at) == 3
    draw_everything(at)
    assert texts(at, "#error-panels .name title") == ["SPLASH"]
    assert all("ResNet-20" in text for text in texts(at, "#player-run option"))
    assert texts(at, "#filter-count") == [f"3 of {everything} runs"]
    assert texts(at, "#attack-panels h3") == ["FGSM · ResNet-20 · CIFAR-10"]
    click(at, '#filters button[type="reset"]')
    wait(lambda: visible_runs(at) == everything, "not everything came back")


def test_tables_sort_both_ways_with_what_is_missing_last(at):
    def column():
        return at.execute_script(
            "return [...document.querySelectorAll('.runs tbody tr')].map((row) => row.cells[8])"
            ".map((cell) => cell.classList.contains('absent') ? null : Number(cell.dataset.value))"
        )

    head = ".runs th:nth-child(9)"
    click(at, f"{head} .sort")
    rising = column()
    known = [value for value in rising if value is not None]
    assert None in rising
    assert rising == sorted(known) + [None] * (len(rising) - len(known))
    click(at, f"{head} .sort")
    assert column() == sorted(known, reverse=True) + [None] * (len(rising) - len(known))
    sort = at.execute_script("return document.querySelector(arguments[0]).ariaSort", head)
    assert sort == "descending"


def test_a_number_leads_to_its_spec_and_its_command(at):
    click(at, "#verdict-accuracy .number-link")
    assert at.execute_script("return document.getElementById('details').open")
    assert "results behind this number" in texts(at, "#details-title")[0]
    commands = texts(at, "#details-body .command")
    assert any(
        c.startswith("splash train --model lenet5 --data cifar-10 --unit splash") for c in commands
    )
    assert any('"unit": "relu"' in text for text in texts(at, "#details-body pre"))
    click(at, "[data-close]")
    assert not at.execute_script("return document.getElementById('details').open")


def test_images_are_seen_at_full_size(at):
    click(at, ".picture")
    width = "return document.querySelector('#details .triple img').getBoundingClientRect().width"
    assert at.execute_script(width) > 100
    assert "class 0, taken for 1 (75 % sure)" in texts(at, "#details-body p")
    click(at, "#details-body button:last-child")
    assert "class 1, taken for 2 (75 % sure)" in texts(at, "#details-body p")


def test_charts_answer_pointer_and_keyboard(at):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.by import By

    draw_everything(at)
    chart = at.find_element(By.CSS_SELECTOR, "#curve-panels svg")
    at.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chart)
    ActionChains(at).move_to_element(chart).perform()
    wait(lambda: "SPLASH" in texts(at, "#tip")[0], "no values at the pointer")
    at.execute_script("arguments[0].focus()", chart)
    ActionChains(at).send_keys(Keys.END).perform()
    wait(
        lambda: texts(at, "#spoken")[0].startswith("epoch 12: SPLASH"), "no words for the keyboard"
    )


def test_the_theme_can_be_changed_and_is_kept(at):
    before = at.execute_script("return getComputedStyle(document.body).backgroundColor")
    click(at, "#theme")
    after = at.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert after != before
    at.refresh()
    assert at.execute_script("return getComputedStyle(document.body).backgroundColor") == after
    click(at, "#theme")


def test_a_served_page_loads_itself_anew(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "NAMES", ())
    monkeypatch.setattr(tables, "TABLES", {})
    store = Store(tmp_path / "runs")
    with serving(store) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.get(f"http://127.0.0.1:{server.server_address[1]}/")
        assert "There are no runs" in texts(browser, "main, header")[0]
        made_run(store, spec("splash"))
        wait(lambda: len(texts(browser, ".runs tbody tr")) == 1, "the run did not appear")
        browser.get("about:blank")
        server.shutdown()
