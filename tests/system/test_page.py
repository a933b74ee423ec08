# SPDX-License-Identifier: Apache-2.0
"""The live page of a real launch in a real browser: read, used by mouse and keyboard, and watched while a worker
dies."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from effort import examples
from running_proxy import heard, proxy
from served import Served, launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: scripts/test.sh installs it as root where there is apt-get"
)
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
# As markup it would run a script, wherever the page puts it.
HOSTILE = "<img src=x onerror=alert(1)>\"'<script>alert(2)</script>"
# Milliseconds for what the server does meanwhile: a restart of a worker takes the longest.
SOON, LATER = 30_000, 120_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("page")
    # The page shows a state each second: a worker that died is away for longer.
    options = ("--share-devices", "--restart-delay", "5")
    with launched(folder, "--model", model, "--served-model-name", HOSTILE, *options) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield made
        made.close()


SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


class Operator:
    """A person at the page. `complaints` are the browser's errors, violations of the page's policy among them."""

    def __init__(self, browser: "Browser", served: Served, *, width: int = 1280) -> None:
        self.served, self.complaints = served, list[str]()
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light")
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(SOON)
        self.page.on("console", lambda told: self.complaints.append(told.text) if told.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"alert {dialog.message}"))
        self.page.goto(f"http://127.0.0.1:{served.port}/admin/ui")
        self.sees("#verdict", "All 2 workers serve.")

    def sees(self, selector: str, text: "str | re.Pattern[str]", timeout: int = SOON) -> None:
        self.page.locator(selector, has_text=text).first.wait_for(timeout=timeout, state="attached")

    def state(self, worker: str) -> str:
        return f'[data-name="{worker}"] header .pill'

    def press(self, worker: str, action: str) -> None:
        """Press a worker's button and confirm."""
        self.page.locator(f'[data-name="{worker}"] [data-action="{action}"]').click()
        self.page.locator("#confirm-yes").click()

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    @property
    def focused(self) -> str:
        """The name of the element with the focus, as a screen reader has it."""
        told = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
        return str(self.page.evaluate(f"document.activeElement.id || {told}"))


@pytest.fixture
def operator(browser: "Browser", served: Served) -> Iterator[Operator]:
    made = Operator(browser, served)
    yield made
    made.context.close()
    assert not made.complaints


def test_the_page_shows_the_launch_and_runs_no_markup(operator: Operator) -> None:
    assert operator.page.locator("#model").inner_text() == HOSTILE
    assert HOSTILE in operator.page.title() and not operator.page.locator("main img").count()
    for worker, role in (("prefill:0", "Prefill"), ("decode:0", "Decode")):
        operator.sees(operator.state(worker), "ready")
        pid = operator.served.topology()[worker]["pid"]
        operator.sees(f'[data-name="{worker}"] .place', re.compile(rf"^cpu · core.* · pid {pid} ·"))
        operator.sees(".column-name", re.compile(role, re.IGNORECASE))
    assert operator.page.locator("#wires .kv").count() == 1 and operator.overflow == 0


def hostile(value: Any) -> Any:
    """Return JSON of the same form with markup in each of its texts, but for words that the page compares."""
    if isinstance(value, dict):
        return {key: one if key in ("role", "state", "action") else hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return f"{HOSTILE} {value}" if isinstance(value, str) else value


def test_no_text_of_a_snapshot_becomes_markup(browser: "Browser", served: Served) -> None:
    """Names of workers, reasons, last lines, routes and progress: whoever makes them up, they are text."""
    snapshot = json.loads(next(served.request("GET", "/admin/events").events()))
    death = {"cause": "x", "reason": "was ended", "seconds_ago": 3, "lines": ["a line"]}
    for row in snapshot["processes"]:
        row |= {"last_death": death, "node": "a stage", "cores": "0"} | (
            {} if row["role"] == "proxy" else {"ranks": []}
        )
    snapshot["changes"] = [
        {"number": 1, "action": "drain", "worker": "w", "role": "mixed", "lines": ["a line"], "outcome": None,
         "failed": False, "seconds_ago": 1.0},
    ]  # fmt: skip
    row = {"id": "a", "received_at": 1.0, "model": "m", "route": "/", "caller": "c", "state": "open", "finish": "f"}
    counts = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "attempts", "seconds"), 2)
    snapshot["requests"] = [row | counts | {"first_token_seconds": None, "workers": ["w", "v"]}]
    reuse = {"prompts": 2, "prompt_tokens": 900, "cached_tokens": 450}
    differs = {"token": 41, "of": 1200, "part": "system", "message": 0}
    snapshot["prompts"] = [{"key": key, "difference": found} | reuse for key, found in (("k", differs), ("l", None))]
    body = f"data: {json.dumps(hostile(snapshot))}\n\n"
    context = browser.new_context()
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"alert {dialog.message}"))
    page.route("**/admin/events", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"http://127.0.0.1:{served.port}/admin/ui")
    page.locator(".card h3", has_text=f"{HOSTILE} decode:0").wait_for(timeout=SOON)
    page.locator("#changes .told", has_text=f"{HOSTILE} a line").wait_for(timeout=SOON)
    page.locator("#request-rows .route", has_text=HOSTILE).wait_for(timeout=SOON)
    first, second = page.locator("#prompt-rows tr").all_inner_texts()
    assert first.split("\t") == [f"{HOSTILE} k", "2", "900", "50 %", f"token 41 of 1,200, {HOSTILE} system, message 0"]
    assert second.split("\t")[-1] == ""
    assert not page.locator("main img, main script").count() and not complaints
    context.close()


@pytest.mark.long  # not held by another
def test_busy_wires_move_without_an_animation(browser: "Browser", served: Served) -> None:
    """An animation of dashes is painted sixty times a second, which took a fifth of a core while there was load."""
    snapshot = json.loads(next(served.request("GET", "/admin/events").events()))
    snapshot["flows"] = [{"from": "prefill:0", "to": "decode:0", "open": 1, "bytes_per_second": 9}]
    body = f"data: {json.dumps(snapshot)}\n\n"
    context = browser.new_context()
    page = context.new_page()
    page.route("**/admin/events", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    page.goto(f"http://127.0.0.1:{served.port}/admin/ui")
    page.locator("#wires .kv[data-busy]").wait_for(timeout=SOON, state="attached")
    page.locator("#wires[stroke-dashoffset]").wait_for(timeout=SOON, state="attached")
    assert page.evaluate("document.getAnimations().length") == 0
    context.close()


def test_a_chat_shows_its_answer_its_workers_and_its_time(operator: Operator) -> None:
    operator.page.fill("#chat-text", "Tell me of the sea. " * 8)
    operator.page.fill("#chat-tokens", "12")
    operator.page.press("#chat-text", "Enter")
    operator.page.locator("#chat-waterfall .waterfall").wait_for()
    facts = operator.page.locator("#chat-facts").inner_text()
    route = re.search(r"(?:prefill:0>)?decode:0|prefill:0", facts)
    # An answer is drawn, and may end before its budget does.
    made = re.search(r"Answer\n(\d+) tokens", facts)
    assert route and made and 1 <= int(made[1]) <= 12 and "cached" in facts, facts
    assert operator.page.locator("#chat-reply").inner_text().strip()
    waterfall = operator.page.locator("#chat-waterfall")
    for process in route[0].split(">"):
        waterfall.locator(".lane .process", has_text=process).first.wait_for()
    lanes = waterfall.locator(".lane .process").all_inner_texts()
    assert "proxy" in lanes and set(route[0].split(">")) <= {"proxy", *lanes}
    waterfall.locator("summary").click()
    assert waterfall.locator("tbody tr").count() >= 3, "the same as a table"
    row = operator.page.locator("#request-rows tr").first
    row.locator("button").click()
    operator.page.locator("#request-detail .waterfall").wait_for()
    operator.page.locator("#request-detail button", has_text="Close").click()
    assert operator.page.locator("#request-detail").is_hidden()


def test_the_time_of_a_worker_that_reports_late_is_shown_too(operator: Operator) -> None:
    """Workers report their times after their last tokens: the first look may find those of one of them."""
    looks: list[str] = []

    def answer(route: "Route") -> None:
        told = route.fetch().json()
        looks.append(told["id"])
        if len(looks) == 1:
            told["spans"] = [span for span in told["spans"] if span["process"] != "decode:0"]
        route.fulfill(json=told)

    operator.page.route("**/admin/requests/*", answer)
    operator.page.fill("#chat-text", "Tell me of the hills. " * 8)
    operator.page.press("#chat-text", "Enter")
    operator.page.locator("#chat-waterfall .lane .process", has_text="decode:0").first.wait_for(timeout=SOON)
    operator.page.unroute("**/admin/requests/*")
    assert len(looks) > 1


@pytest.mark.long  # tests/launcher/supervisor/test_page_changes.py; that the page shows it is not held by another
def test_a_worker_is_drained_and_comes_back(operator: Operator) -> None:
    operator.press("decode:0", "drain")
    operator.sees(operator.state("decode:0"), "drained")
    operator.sees("#verdict", "1 of 2 workers serve. decode:0 is drained.")
    operator.sees("#changes .what", "Drain decode:0")
    assert operator.served.topology()["decode:0"]["state"] == "DRAINED"
    operator.press("prefill:0", "drain")
    operator.sees("#change-problem", "Nobody else would serve")
    # The browser notes the status of the refusal.
    assert all("409" in operator.complaints.pop() for _ in list(operator.complaints))
    operator.press("decode:0", "undrain")
    operator.sees(operator.state("decode:0"), "ready")


@pytest.mark.long  # tests/http/page/test_live_events.py; the dialog's choice of a role is not held by another
def test_a_role_is_chosen_in_the_dialog(operator: Operator) -> None:
    for role, shown in (("mixed", "works as mixed"), ("decode", "")):
        operator.page.locator('[data-name="decode:0"] [data-action="role"]').click()
        operator.page.locator(f'#confirm-roles input[value="{role}"]').check()
        operator.page.locator("#confirm-yes").click()
        operator.sees('[data-name="decode:0"] .role', re.compile(f"^{shown}$"))
        assert operator.served.topology()["decode:0"]["role"] == role


def test_everything_is_reached_by_keyboard(operator: Operator) -> None:
    page, order = operator.page, list[str]()
    page.locator("body").press("Tab")
    while operator.focused != "chat-send" and len(order) < 60:
        order.append(operator.focused)
        page.keyboard.press("Tab")
    for one in ("key-button", "Drain prefill:0", "Role prefill:0", "Restart decode:0", "chat-text"):
        assert one in order, order
    page.locator('[data-name="prefill:0"] [data-action="restart"]').focus()
    page.keyboard.press("Enter")
    assert page.locator("#confirm").is_visible() and operator.focused == "confirm-no"
    page.keyboard.press("Escape")
    assert page.locator("#confirm").is_hidden() and operator.focused == "Restart prefill:0"
    assert not page.locator("#changes li", has_text="Restart prefill:0").count(), "nothing was asked"


@pytest.mark.long  # deaths: tests/system/test_failover.py; that the page shows them is not held by another
def test_a_killed_worker_is_seen_to_die_and_to_come_back(operator: Operator) -> None:
    restarts = operator.served.topology()["decode:0"]["restarts"]
    operator.served.kill("decode:0")
    operator.sees("#verdict[data-tone=bad]", re.compile("decode:0 .*was killed by SIGKILL.* 1 of 2 workers serve."))
    operator.sees("#verdict[data-tone=good]", "All 2 workers serve.", LATER)
    operator.sees('[data-name="decode:0"] .reason', re.compile("ago it was killed by SIGKILL"))
    operator.sees('[data-name="decode:0"] .figures', re.compile(rf"Restarts\s*{restarts + 1}"))


# By default the narrow one, which is harder to fit.
@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.long)])
def test_it_fits_a_phone_and_the_dark(browser: "Browser", served: Served, width: int) -> None:
    operator = Operator(browser, served, width=width)
    operator.page.locator("#chat-send").click()
    operator.page.locator("#chat-waterfall .waterfall").wait_for()
    for scheme in SCHEMES:
        operator.page.emulate_media(color_scheme=scheme)
        assert operator.overflow == 0
        dark = operator.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(13, 18, 23)") is (scheme == "dark")
    operator.context.close()
    assert not operator.complaints


def test_a_key_is_asked_for_and_a_wrong_one_refused(browser: "Browser", tmp_path: Path, model: str) -> None:
    """From another machine, as far as the proxy can see. Nothing is shown, and the key is in no address."""
    key, forwarded = "adm-0123456789-adm", {"x-forwarded-for": "192.0.2.1"}
    with proxy(tmp_path, Path(model), admin=hashlib.sha256(key.encode()).hexdigest()) as process:
        url = heard(process, "ready")["url"]
        context = browser.new_context(extra_http_headers=forwarded)
        page, asked = context.new_page(), list[str]()
        page.set_default_timeout(SOON)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/admin/ui")
        for given, says in (("wrong-0123456789", "The admin key is needed"), (key, "not one of this server's")):
            page.locator("#key-dialog[open] #key-text", has_text=says).wait_for()
            assert not page.locator(".card").count() and not page.locator("#model").inner_text()
            page.fill("#key-input", given)
            page.keyboard.press("Enter")
        page.locator("#verdict", has_text="Not ready: no worker is ready yet").wait_for()
        assert page.locator("#model").inner_text() == "tiny" and page.locator(".proxy").count() == 1
        assert not any(key in one or "wrong" in one for one in asked)
        context.close()


@pytest.mark.long  # tests/http/page/test_page_files.py
def test_without_an_admin_key_there_is_no_page_for_others(browser: "Browser", served: Served) -> None:
    context = browser.new_context(extra_http_headers={"x-forwarded-for": "192.0.2.1"})
    answer = context.new_page().goto(f"http://127.0.0.1:{served.port}/admin/ui")
    assert answer is not None and answer.status == 403
    context.close()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a seed of the world. With --long: of which the trace is the same without it."""
    path = tmp_path_factory.mktemp("recording") / "seed.html"
    command = [sys.executable, "scripts/simulate.py", "--seeds=3", "--requests=12", "--faults=2", "--changes=0"]
    recorded, *plain = (
        subprocess.run([*command, *more], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
        for more in ([f"--page={path}"], [])[: examples(1, 2)]
    )
    assert all(one.split("trace ")[1] == recorded.split("trace ")[1] for one in plain)
    return path


def play_to(page: "Page", frame: int) -> list[str]:
    """Move the slider to a frame of the recording; return the events that are listed then."""
    page.locator("#recording-time").fill(str(frame))
    return page.locator("#recording-moments .told").all_inner_texts()


def frames_in(recording: Path) -> list[dict[str, Any]]:
    told = recording.read_text().split('id="recorded">')[1].split("</script>")[0]
    return list(json.loads(told)["frames"])


def test_a_recording_opens_without_a_server(browser: "Browser", recording: Path) -> None:
    context = browser.new_context()
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(recording.as_uri())
    page.locator("#recording-title", has_text="Seed 3").wait_for(timeout=SOON)
    frames = frames_in(recording)
    early, late = play_to(page, 0), play_to(page, len(frames) - 1)
    assert any(text.startswith("start ") for text in early) and early != late
    assert page.locator("#verdict", has_text="All 4 workers serve").count() == 1
    seen = [
        (at, name) for at, one in enumerate(frames) for name, shown in one["snapshots"].items() if shown["requests"]
    ]
    at, name = seen[-1]
    page.locator("#recording-proxy").select_option(name)
    play_to(page, at)
    page.locator("#request-rows button").first.click()
    page.locator("#request-detail .lane .span.decode").first.wait_for(timeout=SOON)
    assert not page.locator("#recording-close").is_visible() and not page.locator("#chat-form").is_visible()
    page.locator("#recording-play").click()
    page.locator("#recording-play", has_text="Pause").wait_for(timeout=SOON)
    assert not complaints
    context.close()


@pytest.mark.long  # opening one is above; that a server opens it and goes back is not held by another
def test_a_server_shows_a_recording_and_goes_back(operator: Operator, recording: Path, tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text("<p>no recording</p>")
    operator.page.locator("#open-file").set_input_files(tmp_path / "other.html")
    operator.sees("#verdict", "other.html is no recording")
    operator.page.locator("#open-file").set_input_files(recording)
    operator.sees("#recording-title", "Seed 3")
    play_to(operator.page, len(frames_in(recording)) - 1)
    operator.sees("#verdict", "All 4 workers serve")
    operator.page.locator("#recording-close").click()
    operator.sees("#verdict", "All 2 workers serve")
