"""The report in a real browser, opened from disk."""

import re

import pytest
from run_folder import HOSTILE

import taskuq as tq
from browsing import on_screen, unfold, violations

STATE = "window.taskuqExplorer.state()"


@pytest.fixture
def page(open_page, run_dir):
    return open_page(run_dir / "report.html")


def settled(page):
    """Wait until both pictures are those of the state."""
    page.wait_for_function(
        """() => { const s = window.taskuqExplorer.state();
        return document.querySelector('[data-part=picture]').dataset.shown
            === `${s.slice}/${s.round}/${s.view}`; }"""
    )


def test_it_opens_from_disk_silently_and_alone(page):
    settled(page)

    assert page.heard.messages == []
    assert page.heard.outside == []
    assert len([url for url in page.heard.requests if url.startswith("file:")]) == 1


def test_the_listener_hears_messages_and_requests(open_page, tmp_path):
    (tmp_path / "loud.html").write_text(
        "<script>console.log('loud')</script><img src='http://localhost:9/x.png'>"
    )
    page = open_page(tmp_path / "loud.html")

    assert "loud" in page.heard.messages
    assert page.heard.outside == ["http://localhost:9/x.png"]


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "light"), (360, "dark"), (768, "light"), (1280, "light")]
)
def test_nothing_scrolls_sideways(open_page, run_dir, keep, width, scheme):
    page = open_page(run_dir / "report.html", width=width, scheme=scheme)
    settled(page)
    unfold(page)
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = false)")
    keep(page, f"page-{scheme}-{width}", full_page=True)

    assert wide <= width


def test_dark_is_dark_and_print_is_on_white(open_page, run_dir, keep):
    page = open_page(run_dir / "report.html", scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = [int(v) for v in re.findall(r"\d+", page.evaluate(ground))]
    page.emulate_media(media="print")
    printed = [int(v) for v in re.findall(r"\d+", page.evaluate(ground))]
    keep(page, "page-print", full_page=True)

    assert max(dark[:3]) < 60
    assert min(printed[:3]) == 255
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.pdf()[:4] == b"%PDF"


def test_pictures_are_painted_and_differ(page, keep):
    sums = set()
    for key in "zmdept":
        page.locator("[data-part=viewer]").press(key)
        settled(page)
        sums.add(
            page.evaluate(
                """() => { const c = document.querySelector('[data-part=picture]');
            return c.getContext('2d').getImageData(0, 0, c.width, c.height).data
                .reduce((a, b) => a + b, 0); }"""
            )
        )
        keep(page.locator("#explorer"), f"explorer-{key}")

    assert len(sums) == 6


def test_the_keyboard_is_enough(page):
    viewer = page.locator("[data-part=viewer]")
    viewer.press("ArrowRight")
    viewer.press("ArrowRight")
    viewer.press("ArrowDown")
    viewer.press(" ")
    viewer.press(" ")
    state = page.evaluate(STATE)

    assert (state["round"], state["slice"], state["view"]) == (2, 1, "sample-2")
    viewer.press("ArrowUp")
    viewer.press("ArrowUp")
    assert page.evaluate(STATE)["slice"] == 5  # round the corner, to the last of six


def test_the_film_shows_every_round_and_takes_one_there(page):
    frames = page.locator("[data-part=rounds] label")
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-part=rounds] canvas')]"
        ".every((c, k) => c.dataset.shown === `0/${k}/mean`)"
    )
    frames.nth(2).click()

    assert frames.all_inner_texts() == ["R = 16", "R = 8", "R = 4", "R = 2"]
    assert page.evaluate(STATE)["round"] == 2
    page.keyboard.press("ArrowRight")
    assert page.evaluate(STATE)["round"] == 3


def test_samples_stand_side_by_side(page):
    page.locator("[data-part=viewer]").press("a")
    settled(page)
    sizes = page.evaluate(
        "() => ['picture', 'second'].map(n => document.querySelector(`[data-part=${n}]`).width)"
    )

    assert sizes == [128, 64]  # four samples of 64, two in a row
    assert "All 4 stored samples" in page.locator("[data-part=picture-name]").inner_text()


def test_error_and_spread_share_one_scale_with_its_numbers(page, keep):
    page.locator("[data-part=viewer]").press("e")
    page.locator("[data-part=beside]").select_option("sd")
    page.wait_for_function(
        "() => document.querySelector('[data-part=second]').dataset.shown === '0/0/sd'"
    )
    keep(page.locator("#explorer"), "explorer-error-and-spread")
    legends = [
        page.locator(f"[data-part={name}-heat]").inner_text() for name in ("picture", "second")
    ]

    assert legends[0] == legends[1]
    assert float(legends[0].split()[-1]) > 0


def test_another_case_stands_beside_with_its_own_outcome(page):
    page.locator("[data-part=beside]").select_option("case-3")
    page.wait_for_function(
        "() => document.querySelector('[data-part=second]').dataset.shown === '3/0/mean'"
    )
    told = page.locator("[data-part=second-name]").inner_text()
    stop = page.evaluate("window.taskuqExplorer.at({slice: 3}).stop")
    names = ["R = 16", "R = 8", "R = 4", "R = 2"]

    assert page.evaluate("window.taskuqExplorer.state().slice") == 0
    assert (f"stops at {names[stop]} " in told) if stop < 4 else ("measured in full" in told)


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
@pytest.mark.parametrize("tau", ["0.1", "0.001"])
def test_a_scan_is_played_until_it_stops(open_page, run_dir, keep, motion, tau):
    page = open_page(run_dir / "report.html", reduced_motion=motion, fragment=f"#tau={tau}")
    settled(page)
    page.evaluate(
        """() => { const told = document.querySelector('[data-part=played]'); window.told = [];
        new MutationObserver(() => window.told.push(told.textContent))
            .observe(told, {childList: true}); }"""
    )
    page.locator("[data-part=play]").press("Enter")
    page.wait_for_function(
        "() => document.querySelector('#explorer').dataset.playing === 'false'", timeout=30_000
    )
    keep(page.locator("#explorer"), f"explorer-played-{tau}-{motion}")
    stop = page.evaluate("window.taskuqExplorer.at({}).stop")
    measured = int(page.locator("[data-part=acquired]").get_attribute("data-measured"))
    said = page.locator("[data-part=played]").inner_text()

    assert (stop == 4) == (tau == "0.001")
    assert measured == [4, 8, 16, 32, 64][stop]  # of 64 lines
    assert f"{measured} of 64" in said
    assert ("the scan stops" in said) == (stop < 4)
    told = page.evaluate("window.told")
    assert sum("no report yet" in one for one in told) == stop
    assert [" to " in one for one in told] == ["the scan stops" in one for one in told]
    assert page.evaluate(STATE)["round"] == min(stop, 3)
    assert page.heard.messages == []


def test_playing_can_be_stopped(page):
    button = page.locator("[data-part=play]")
    button.click()
    assert button.inner_text() == "Stop playing"
    button.click()

    assert page.locator("#explorer").get_attribute("data-playing") == "false"
    assert button.get_attribute("aria-pressed") == "false"


def test_tab_reaches_every_control(page):
    page.locator("[data-part=viewer]").focus()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.part ?? ''"))

    assert {"group", "slice", "previous", "next", "alpha", "alpha-exact", "tau", "tau-exact",
            "policy", "score", "unit", "link", "flip", "play", "beside"} <= reached  # fmt: skip


def test_a_link_restores_the_view(page, open_page, run_dir):
    page.locator("[data-part=viewer]").press("ArrowRight")
    page.locator("[data-part=score]").select_option("cqr")
    page.locator("[data-part=policy]").select_option("paper")
    page.locator("[data-part=unit]").select_option("case")
    page.locator("[data-part=alpha-exact]").fill("0.0625")
    page.locator("[data-part=viewer]").press("d")
    state = page.evaluate(STATE)
    fragment = page.evaluate("location.hash")
    again = open_page(run_dir / "report.html", fragment=fragment)

    assert page.locator("[data-part=link]").get_attribute("href") == fragment
    assert again.evaluate(STATE) == state
    assert again.locator("[data-part=verdict]").inner_text() == page.locator(
        "[data-part=verdict]").inner_text()  # fmt: skip


@pytest.mark.parametrize(
    "fragment",
    ["#slice=99&round=-1&alpha=2&tau=x&score=none&view=<img>", "#figures", "#alpha=&tau=",
     "#slice=1e9&round=0.5&policy=__proto__&unit=constructor"],
)  # fmt: skip
def test_a_link_that_asks_for_nonsense_changes_nothing(page, open_page, run_dir, fragment):
    other = open_page(run_dir / "report.html", fragment=fragment)

    assert other.evaluate(STATE) == page.evaluate(STATE)
    assert other.heard.messages == []


def test_nonsense_in_a_number_field_is_marked_and_ignored(page):
    before = page.evaluate(STATE)
    for text in ("1.5", "0", "-3", ""):
        page.locator("[data-part=alpha-exact]").fill(text)
        assert page.locator("[data-part=alpha-exact]").get_attribute("aria-invalid") == "true"

    assert page.evaluate(STATE) == before
    assert page.heard.messages == []


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("stops-early", "#slice=0&round=0&policy=fixed-width"),
        ("too-few", "#slice=1&round=1&alpha=0.001&policy=adaptive&score=lwr"),
        ("paper", "#slice=2&round=2&policy=paper&score=cqr&unit=case&view=sample-2"),
        ("goes-on", "#slice=3&round=3&tau=0.002&policy=anytime&view=sd"),
    ],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_state_says_what_it_means(open_page, run_dir, keep, name, fragment, scheme):
    page = open_page(run_dir / "report.html", fragment=fragment, scheme=scheme)
    settled(page)
    keep(page.locator("#explorer"), f"explorer-{name}-{scheme}")
    words = page.locator("[data-part=verdict]").inner_text()

    assert ("Guaranteed" in words) == (name in ("stops-early", "goes-on"))
    assert ("not guaranteed" in words) == (name == "paper")
    assert ("needs at least 999" in words) == (name == "too-few")
    assert ("everything is measured" in words) == (name in ("too-few", "goes-on"))
    said = page.locator("#explorer").inner_text()
    assert not re.search(r"\b(nan|undefined|null|infinity)\b", said, re.IGNORECASE)


def test_hostile_names_are_shown_as_text(open_page, hostile_run, keep):
    page = open_page(hostile_run / "report.html")
    settled(page)
    unfold(page)
    shown = page.locator("body").inner_text()
    options = page.locator("[data-part=group] option").all_inner_texts()
    keep(page, "hostile", full_page=True)

    assert page.heard.messages == []
    assert page.heard.dialogs == []
    assert page.title() == HOSTILE[2]
    for name in HOSTILE:
        plain = " ".join(name.split())
        assert plain in " ".join(shown.split())
        assert any(plain in " ".join(option.split()) for option in options)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_script_that_is_not_ours_does_not_run(open_page, run_dir, tmp_path):
    text = (run_dir / "report.html").read_text()
    planted = text.replace("</main>", "<script>document.title = 'owned'</script></main>")
    (tmp_path / "planted.html").write_text(planted)
    page = open_page(tmp_path / "planted.html")

    assert page.title() != "owned"
    assert any("Content Security Policy" in message for message in page.heard.messages)


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_axe_finds_no_serious_violation(open_page, run_dir, axe, scheme, width):
    page = open_page(run_dir / "report.html", scheme=scheme, width=width, bypass_csp=True)
    settled(page)

    assert violations(page, axe) == []


def test_axe_finds_none_in_what_can_be_unfolded(open_page, hostile_run, axe):
    page = open_page(hostile_run / "report.html", bypass_csp=True)
    settled(page)
    unfold(page)

    assert violations(page, axe) == []


def test_axe_finds_what_is_wrong(open_page, tmp_path, axe):
    (tmp_path / "bad.html").write_text("<title>t</title><img src='data:,'><input>")
    found = violations(open_page(tmp_path / "bad.html"), axe)

    assert {"image-alt", "label"} <= {name for name, _, _ in found}


SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}


PARTS = ("[data-part=sentence]", "[data-part=tiles]", ".first .promise")


@pytest.mark.parametrize("screen", SCREENS)
def test_sentence_numbers_and_promise_are_on_the_first_screen(open_page, run_dir, keep, screen):
    width, height = SCREENS[screen]
    page = open_page(run_dir / "report.html", width=width, height=height)
    keep(page, f"first-{screen}")

    assert all(on_screen(page, part) for part in PARTS)
    assert on_screen(page, "[data-part=scan]") == (screen == "desktop")
    assert page.locator("[data-part=tiles] li").count() == 3
    assert tq.load_policy(run_dir / "policy.json").sentence in page.locator(PARTS[2]).inner_text()


def test_what_lies_below_is_not_on_the_first_screen(open_page, run_dir):
    page = open_page(run_dir / "report.html", width=1280, height=800)
    assert not on_screen(page, "#h-results")
    page.evaluate("scrollTo({top: 40, behavior: 'instant'})")
    assert not on_screen(page, "[data-part=sentence]")


@pytest.mark.parametrize("screen", SCREENS)
def test_a_shortage_is_on_the_first_screen_beside_its_promise(open_page, short_run, keep, screen):
    width, height = SCREENS[screen]
    page = open_page(short_run / "report.html", width=width, height=height)
    keep(page, f"first-short-{screen}")

    assert all(on_screen(page, part) for part in PARTS)
    assert "needs at least 99 calibration groups, got 30" in page.locator(PARTS[2]).inner_text()
    assert "at least 99" in page.locator(PARTS[1]).inner_text()


def test_the_menu_is_folded_on_a_phone_and_open_beside_a_wide_page(open_page, run_dir):
    phone = open_page(run_dir / "report.html", width=390, height=844)
    wide = open_page(run_dir / "report.html", width=1280, height=800)

    assert not phone.locator("nav ol").is_visible()
    phone.locator("#menu").press(" ")
    assert phone.locator("nav ol").is_visible()
    assert wide.locator("nav ol").is_visible()


def test_every_verdict_leads_to_what_it_says(open_page, run_dir):
    page = open_page(run_dir / "report.html")
    links = page.locator(".verdicts a").evaluate_all("all => all.map(a => a.getAttribute('href'))")

    assert links
    assert all(page.locator(link).count() == 1 for link in links)
