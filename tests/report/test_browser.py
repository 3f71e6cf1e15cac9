import re

import pytest
from run_folder import HOSTILE

import taskuq as tq
from browsing import on_screen, overprinted, unfold, violations
from taskuq.report.figures import method_colour, method_label

STATE = "window.taskuqExplorer.state()"
SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}
screens = pytest.mark.parametrize("screen", SCREENS)


@pytest.fixture
def page(open_page, run_dir):
    return open_page(run_dir / "report.html")


@pytest.fixture
def sized(open_page, run_dir):
    """Open the report at the size of a screen."""

    def open_(screen, path=run_dir / "report.html", **options):
        width, height = SCREENS[screen]
        return open_page(path, width=width, height=height, **options)

    return open_


def settled(page):
    """Wait until the first picture is that of the state."""
    page.wait_for_function(
        """() => { const s = window.taskuqExplorer.state();
        return document.querySelector('[data-part=picture]').dataset.shown
            === `${s.slice}/${s.round}/${s.view}`; }"""
    )


def part(page, name):
    return page.locator(f"[data-part={name}]")


def test_it_opens_from_disk_silently_and_alone(page):
    settled(page)
    assert page.heard.messages == []
    assert page.heard.outside == []
    assert len([url for url in page.heard.requests if url.startswith("file:")]) == 1


@screens
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_text_overprints_another_and_nothing_scrolls_sideways(sized, keep, screen, scheme):
    page = sized(screen, scheme=scheme)
    settled(page)
    keep(page, f"page-{scheme}-{screen}", full_page=True)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen][0]
    assert overprinted(page) == []
    # A table that is wider than its box shows that it scrolls, and keeps its first column.
    wide = page.locator(".table > .scroll").evaluate_all(
        """all => all.filter(s => s.scrollWidth > s.clientWidth + 1)
        .map(s => [getComputedStyle(s.parentElement.querySelector('.cue')).display,
                   getComputedStyle(s.querySelector('tbody th')).position])"""
    )
    assert set(map(tuple, wide)) <= {("block", "sticky")}
    assert wide or screen == "desktop"


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


def test_a_method_has_one_colour_throughout(page):
    unfold(page)
    legends = page.locator(".legend li").evaluate_all(
        "all => all.map(li => [li.lastElementChild.textContent, li.firstElementChild.classList[1]])"
    )
    colours = {}
    for name, colour in legends:
        colours.setdefault(name, set()).add(colour)
    methods = ("ar", "lwr", "cqr", "mlwr", "fixed-width spread", "paper lwr", "varnet", "flow")
    part(page, "policy").select_option("adaptive")
    part(page, "score").select_option("cqr")
    drawn = [
        page.locator(f".strip .{kind}").first.evaluate("r => getComputedStyle(r).fill")
        for kind in ("interval", "report")
    ]
    table = "k => { const s = document.createElement('i'); s.className = 'c' + k;"
    table += " document.body.append(s); return getComputedStyle(s).color; }"
    assert {name: colours[method_label(name)] for name in methods} == {
        name: {f"c{method_colour(name)}"} for name in methods
    }
    assert drawn == [page.evaluate(table, method_colour(name)) for name in ("cqr", "adaptive")]


def test_pictures_are_painted_and_differ(page, keep):
    sums = set()
    for key in "zmdept":
        part(page, "viewer").press(key)
        settled(page)
        sums.add(
            page.evaluate(
                """() => { const c = document.querySelector('[data-part=picture]');
            return c.getContext('2d').getImageData(0, 0, c.width, c.height).data
                .reduce((a, b) => a + b, 0); }"""
            )
        )
    keep(page.locator("#explorer"), "explorer")
    assert len(sums) == 6


def test_the_keyboard_is_enough(page):
    viewer = part(page, "viewer")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", " ", " "):
        viewer.press(key)
    state = page.evaluate(STATE)
    assert (state["round"], state["slice"], state["view"]) == (2, 1, "sample-2")
    viewer.press("ArrowUp")
    viewer.press("ArrowUp")
    assert page.evaluate(STATE)["slice"] == 5  # from the first to the last of six


@pytest.mark.parametrize("policy", ["fixed-width", "adaptive"])
def test_the_ends_of_an_interval_are_two_samples_and_those_outside_are_marked(page, keep, policy):
    part(page, "policy").select_option(policy)
    page.locator("[data-view=ends]").click()
    answer = page.evaluate("window.taskuqExplorer.at({}).rounds[0]")
    low, high = answer["report" if policy == "fixed-width" else "interval"]
    stored = page.evaluate("JSON.parse(document.getElementById('stored').textContent).slices[0]")
    outputs = stored["outputs"][0][0]
    near = [min(range(4), key=lambda j, end=end: abs(outputs[j] - end)) for end in (low, high)]
    for name, j in zip(("picture", "second"), near, strict=True):
        page.wait_for_function(
            f"document.querySelector('[data-part={name}]').dataset.shown === '0/0/sample-{j + 1}'"
        )
    keep(page.locator("#explorer"), f"explorer-ends-{policy}")
    marked = page.locator(".strip g.round").first.locator(".dot.outside").count()
    assert marked == sum(not low <= v <= high for v in outputs)


def played(page):
    """Play the scan to its end."""
    part(page, "play").press("Enter")
    page.wait_for_function(
        "() => document.querySelector('#explorer').dataset.playing === 'false'", timeout=60_000
    )
    return part(page, "played").inner_text()


@pytest.mark.parametrize(("tau", "motion"), [("0.1", "no-preference"), ("0.001", "reduce")])
def test_a_scan_is_played_until_it_stops(open_page, run_dir, motion, tau):
    page = open_page(run_dir / "report.html", reduced_motion=motion, fragment=f"#tau={tau}")
    settled(page)
    page.evaluate(
        """() => { const caption = document.querySelector('[data-part=played]'); window.told = [];
        new MutationObserver(() => window.told.push(caption.textContent))
            .observe(caption, {childList: true}); }"""
    )
    caption = played(page)
    stop = page.evaluate("window.taskuqExplorer.at({}).stop")
    measured = int(part(page, "acquired").get_attribute("data-measured"))
    captions = page.evaluate("window.told")
    assert (stop == 4) == (tau == "0.001")
    assert measured == [4, 8, 16, 32, 64][stop]  # of 64 lines
    assert f"{measured} of 64" in caption
    # An interval is reported in the last round alone.
    assert sum(" to " in one for one in captions) == (stop < 4)
    assert page.evaluate(STATE)["round"] == min(stop, 3)
    assert page.heard.messages == []


CHANGES = {
    "tau": lambda page: part(page, "tau-exact").fill("0.5"),
    "alpha": lambda page: page.locator("input[type=range][data-part=alpha]").press("ArrowLeft"),
    "next": lambda page: part(page, "next").click(),
    "group": lambda page: part(page, "group").select_option(index=1),
    "policy": lambda page: part(page, "policy").select_option("paper"),
    "unit": lambda page: part(page, "unit").select_option("case"),
    "round": lambda page: page.locator("[data-part=rounds] label").first.click(),
    "arrow": lambda page: part(page, "viewer").press("ArrowDown"),
    "invalid": lambda page: part(page, "tau-exact").fill("-1"),
    "link": lambda page: page.evaluate("location.hash = '#slice=2'"),
}


def test_a_caption_of_a_played_scan_ends_with_its_state(open_page, run_dir):
    page = open_page(run_dir / "report.html", reduced_motion="reduce")
    for name, change in CHANGES.items():
        page.evaluate("location.hash = '#slice=0&round=0'")
        assert played(page), name
        change(page)
        page.wait_for_function("!document.querySelector('[data-part=played]').textContent")
        assert part(page, "acquired").is_hidden(), name
    # Another view of the same state keeps it.
    page.evaluate("location.hash = '#slice=0&round=0'")
    caption = played(page)
    part(page, "viewer").press("d")
    assert part(page, "played").inner_text() == caption
    # Stopping clears it.
    # Both clicks in one task: no step of the scan comes between them.
    page.evaluate("const b = document.querySelector('[data-part=play]'); b.click(); b.click();")
    assert page.locator("#explorer").get_attribute("data-playing") == "false"
    assert part(page, "played").inner_text() == ""


def test_tab_reaches_every_control(page):
    part(page, "policy").select_option("adaptive")
    part(page, "viewer").focus()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.part ?? ''"))
    assert {"group", "slice", "previous", "next", "alpha", "alpha-exact", "tau", "tau-exact",
            "policy", "score", "unit", "within", "link", "play", "compare"} <= reached  # fmt: skip


def test_a_link_restores_the_view(page, open_page, run_dir):
    part(page, "viewer").press("ArrowRight")
    part(page, "policy").select_option("paper")
    part(page, "score").select_option("cqr")
    part(page, "unit").select_option("case")
    part(page, "alpha-exact").fill("0.0625")
    part(page, "viewer").press("d")
    state, fragment = page.evaluate(STATE), page.evaluate("location.hash")
    again = open_page(run_dir / "report.html", fragment=fragment)
    assert part(page, "link").get_attribute("href") == fragment
    assert again.evaluate(STATE) == state
    assert part(again, "verdict").inner_text() == part(page, "verdict").inner_text()


@pytest.mark.parametrize(
    "fragment",
    ["#slice=99&round=-1&alpha=2&tau=x&score=none&view=<img>", "#figures", "#alpha=&tau=",
     "#slice=1e9&round=0.5&policy=__proto__&unit=constructor"],
)  # fmt: skip
def test_an_impossible_link_changes_nothing(page, open_page, run_dir, fragment):
    other = open_page(run_dir / "report.html", fragment=fragment)
    assert other.evaluate(STATE) == page.evaluate(STATE)
    assert other.heard.messages == []


def test_an_invalid_number_withdraws_the_result_until_it_is_corrected(page):
    before, guaranteed = page.evaluate(STATE), part(page, "guarantee").inner_text()
    field = part(page, "alpha-exact")
    for text in ("2", "0", "-3", ""):
        field.fill(text)
        assert field.get_attribute("aria-invalid") == "true"
        assert part(page, "alpha-error").inner_text() in part(page, "verdict").inner_text()
        assert part(page, "guarantee").inner_text() == ""
        assert part(page, "verdict").get_attribute("class") == "verdict none"
    assert page.evaluate(STATE) == before
    field.fill(before["alpha"])
    assert field.get_attribute("aria-invalid") == "false"
    assert part(page, "alpha-error").inner_text() == ""
    assert part(page, "guarantee").inner_text() == guaranteed != ""
    field.fill("2")
    part(page, "next").click()
    assert field.input_value() == before["alpha"]
    assert part(page, "guarantee").inner_text() != ""


def test_a_policy_by_risk_shows_its_risk_and_no_intervals_of_a_score(page):
    rounds = page.evaluate("window.taskuqExplorer.at({}).rounds")
    cells = {name: part(page, "numbers").locator(f"[data-cell={name}]").all_inner_texts()
             for name in ("risk", "limit", "quantile")}  # fmt: skip
    assert part(page, "score").is_disabled()
    assert page.locator(".strip .interval").count() == len(cells["quantile"]) == 0
    for risk, limit, one in zip(cells["risk"], cells["limit"], rounds, strict=True):
        assert float(risk) == pytest.approx(one["risk"], rel=6e-3)
        assert (float(one["risk"]) < -one["threshold"]) == one["stops"]
        assert float(limit) == pytest.approx(-one["threshold"], rel=6e-3)
    part(page, "policy").select_option("adaptive")
    assert part(page, "score").is_enabled()
    assert page.locator(".strip .interval").count() == 4
    assert part(page, "numbers").locator("[data-cell=quantile]").count() == 4


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("early", "#slice=0&round=0&policy=fixed-width"),
        ("too-few", "#slice=1&round=1&alpha=0.001&policy=adaptive&score=lwr"),
        ("paper", "#slice=2&round=2&policy=paper&score=cqr&unit=case&view=sample-2"),
        ("full", "#slice=3&round=3&tau=0.002&policy=anytime&view=sd"),
    ],
)
def test_every_state_has_its_guarantee(open_page, run_dir, keep, name, fragment):
    page = open_page(run_dir / "report.html", fragment=fragment)
    settled(page)
    keep(page.locator("#explorer"), f"explorer-{name}")
    words = part(page, "verdict").inner_text()
    assert ("Guaranteed" in words) == (name in ("early", "full"))
    assert ("not guaranteed" in words) == (name == "paper")
    assert ("needs at least 999" in words) == (name == "too-few")
    assert ("measured in full" in words) == (name in ("too-few", "full"))
    text = page.locator("#explorer").inner_text()
    assert not re.search(r"\b(nan|undefined|null|infinity)\b", text, re.IGNORECASE)


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


@pytest.mark.parametrize(("screen", "scheme"), [("phone", "dark"), ("desktop", "light")])
def test_axe_finds_no_serious_violation(sized, hostile_run, axe, scheme, screen):
    page = sized(screen, scheme=scheme, bypass_csp=True)
    settled(page)
    assert violations(page, axe) == []
    page = sized(screen, hostile_run / "report.html", scheme=scheme, bypass_csp=True)
    settled(page)
    unfold(page)
    assert violations(page, axe) == []


PARTS = ("[data-part=about]", "[data-part=sentence]", "[data-part=tiles]", ".first .guarantee")


@screens
def test_answer_numbers_and_guarantee_are_on_the_first_screen(
    sized, run_dir, short_run, keep, screen
):
    page = sized(screen)
    keep(page, f"first-{screen}")
    assert all(on_screen(page, part) for part in PARTS)
    assert on_screen(page, "[data-part=scan]") == (screen == "desktop")
    assert page.locator("[data-part=tiles] li").count() == 3
    assert on_screen(page, "[data-part=worst]")
    statement = tq.load_policy(run_dir / "policy.json").statement
    assert statement in page.locator(PARTS[3]).inner_text()
    # A shortage is next to its guarantee.
    page = sized(screen, short_run / "report.html")
    keep(page, f"first-short-{screen}")
    assert all(on_screen(page, part) for part in PARTS)
    assert "99" in page.locator(".first .guarantee .shortage").inner_text()


def test_the_menu_is_folded_on_a_phone_and_open_on_a_wide_screen(sized):
    phone, wide = sized("phone"), sized("desktop")
    assert not phone.locator("nav ol").is_visible()
    phone.locator("#menu").press(" ")
    assert phone.locator("nav ol").is_visible()
    assert wide.locator("nav ol").is_visible()


def test_every_status_has_a_criterion_and_leads_to_its_section(page):
    links = page.locator(".verdicts a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    pills = page.locator(".verdicts .pill").evaluate_all(
        "all => all.map(p => [p.innerText, p.title])"
    )
    assert links
    assert all(page.locator(link).count() == 1 for link in links)
    assert all(title.startswith("Criterion: ") for _, title in pills)
    statuses = {"supported", "partly supported", "not supported", "not tested"}
    assert {status for status, _ in pills} <= statuses


def test_figures_and_long_tables_are_files(page):
    unfold(page)
    plates = page.locator("figure.plate").count()
    rows = page.locator("figure.plate table").evaluate_all(
        "all => all.map(t => t.tBodies[0].rows.length)"
    )
    assert plates == page.locator("figure.plate a[download]").count() > 10
    assert max(rows) <= 12
    with page.expect_download() as download:
        page.locator("figure.plate a[download]").first.click()
    assert download.value.path().read_text(encoding="utf-8-sig").startswith("series,")


def test_planted_faults_of_a_page_are_found(open_page, tmp_path):
    style = "style='position:absolute;top:9px;left:9px'"
    (tmp_path / "bad.html").write_text(
        "<title>t</title><script>console.log('loud')</script><img src='http://localhost:9/x.png'>"
        f"<p {style}>coverage</p><p {style}>0.95</p><p>apart</p>"
    )
    page = open_page(tmp_path / "bad.html")
    assert "loud" in page.heard.messages
    assert page.heard.outside == ["http://localhost:9/x.png"]
    assert overprinted(page) == [["coverage", "0.95"]]


def test_axe_finds_what_is_wrong(open_page, tmp_path, axe):
    (tmp_path / "bad.html").write_text("<title>t</title><img src='data:,'><input>")
    found = violations(open_page(tmp_path / "bad.html"), axe)
    assert {"image-alt", "label"} <= {name for name, _, _ in found}
