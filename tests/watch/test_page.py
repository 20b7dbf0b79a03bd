"""The page of a run: one file that runs nothing and asks nothing, and fits a screen and a phone."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import pytest
import runs
from browser import CHROMIUM, chromium
from rich.console import Console

from recipe.watch import curves, page, report
from recipe.watch.history import Rollout, read

ATTACKS = (
    "<script>document.title = 'hacked'</script>",
    "</pre></details></script><img src=x onerror=\"document.title='hacked'\">",
    '" onmouseover="document.title=\'hacked\'" x="',
    "<iframe src=https://example.org></iframe><link rel=stylesheet href=https://example.org/x.css>",
    "<style>body { background: url(https://example.org/x) }</style>",
    "{{ 7 * 191 }}{% raw %}",
    "\x1b[2J\x1b]0;title\x07\x00\x9b",
    "lone \ud800 surrogate \u202e turned",
)
LONG = 10_000_000


def write(folder, events, **settings):
    run = runs.write(folder, events, **settings)
    return run, made(run)


def made(run) -> str:
    """The page without its curves, which take the most time."""
    return page.write(run, read(run), [], {})


def put_trial(run, name, texts):
    """A trial's folder as our agent server leaves it, with `texts` wherever an agent or a verifier may write."""
    folder = run / "trials" / name
    (folder / "agent").mkdir(parents=True)
    (folder / "verifier").mkdir()
    with (folder / "agent" / "trajectory.jsonl").open("w") as file:
        for text in texts:
            function = {"name": text[:100], "arguments": text}
            message = {
                "role": "assistant",
                "content": text,
                "reasoning_content": text,
                "tool_calls": [{"function": function}],
            }
            for one in (message, {"role": text[:100], "content": text}):
                file.write(json.dumps({"message": one}) + "\n")
    (folder / "verifier" / "test-stdout.txt").write_text("\n".join(texts), errors="replace")
    (folder / "result.json").write_text(json.dumps({"exception_info": {"exception_message": texts[0]}}))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """The report of a run in which every text that an agent, a task or a server may choose is an attack."""

    def trial(rollout, one):
        attack = ATTACKS[rollout % len(ATTACKS)]
        one |= {"task": f"task {attack}", "exit_status": f"Odd {attack}", "error": attack}

    events = runs.healthy(8, trial=trial, kept=2, started=2)
    for attack in ATTACKS:
        alarm = {"alarm": attack, "rollout": 1, "found": attack, "do": attack, "action": "warn"}
        events.append({"time": runs.START, "kind": "alarm", **alarm})
    events.append({"time": runs.START, "kind": "end", "status": "failed", "error": ATTACKS[1]})
    run = runs.write(tmp_path_factory.mktemp("runs") / "run", events, agent=ATTACKS[0], load_dir=ATTACKS[2])
    trials = [one for event in events if event["kind"] == "group" for one in event["trials"]]
    for place, one in enumerate(trials):
        put_trial(run, one["trial_name"], ATTACKS if place else ("x" * LONG,))
    report.show(run, Console(file=io.StringIO()))
    return run / "report" / "index.html"


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_a_page_has_no_script_and_asks_nothing_whatever_its_trials_say(attacked):
    text = attacked.read_text(encoding="utf-8")
    elements = Elements(text).found
    tags = {tag for tag, _ in elements}
    assert not tags & {"script", "iframe", "img", "object", "embed", "form", "base", "foreignobject", "a"}
    links = [attributes["href"] for tag, attributes in elements if tag == "link"]
    assert links == ["data:,"]
    for _, attributes in elements:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        assert all(value.startswith("#") for name, value in attributes.items() if name == "xlink:href")
    assert "1337" not in text
    assert "{{ 7 * 191 }}" in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "shown 1,600 of 10,000,000 characters" in text
    assert len(text) < 5e6


def test_the_policy_of_the_page_lets_nothing_run(attacked):
    metas = [
        attributes
        for tag, attributes in Elements(attacked.read_text(encoding="utf-8")).found
        if tag == "meta"
    ]
    (policy,) = (of["content"] for of in metas if of.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "script-src" not in policy
    assert "http" not in policy


def test_a_page_says_what_a_reader_asks_first(tmp_path):
    _, text = write(tmp_path / "run", runs.healthy(20), num_rollout=20)
    assert "Yes: 20 of 20 rollouts" in text
    assert "The mean reward rose" in text
    assert "No alarm, no broken trial" in text
    assert "3,200, 800 h, 80.00 USD" in text


def test_a_mean_reward_that_only_wavers_is_no_change(tmp_path):
    def even(rollout, metrics):
        metrics |= {"reward_mean": 0.5 + 0.01 * (rollout % 2), "reward_std": 0.5}

    _, text = write(tmp_path / "run", runs.healthy(10, metrics=even))
    assert "No clear change" in text


def test_a_fall_is_told(tmp_path):
    def falling(rollout, metrics):
        metrics |= {"reward_mean": 0.8 - 0.05 * rollout, "reward_std": 0.4}

    _, text = write(tmp_path / "run", runs.healthy(10, metrics=falling))
    assert "The mean reward fell" in text


def test_alarms_broken_trials_and_what_was_left_behind_are_told(tmp_path):
    def broken(rollout, trial):
        if rollout == 1 and trial["sample"] % 8 == 0:
            trial |= {"exit_status": "AgentError", "reward": None, "error": "no sandbox"}

    events = runs.healthy(3, trial=broken)
    alarm = {"alarm": "disk", "rollout": 1, "found": "1 GB", "do": "free some", "action": "stop"}
    events += [{"time": runs.START, "kind": "alarm", **alarm}] * 2
    events += [{"time": runs.START, "kind": "sandbox", "sandbox": "s", "state": "orphan"}]
    _, text = write(tmp_path / "run", events)
    assert "alarm disk (2 times)" in text
    assert "16 of 384 trials broken by the infrastructure; 1 sandboxes left behind" in text
    assert "free some" in text
    assert "the run was stopped" in text
    assert "group dropped" in text
    assert "no sandbox" in text


@pytest.mark.parametrize(
    ("events", "exit_code", "said"),
    [
        ([], None, "Not to its end: 0 of 100 rollouts"),
        (runs.healthy(2, ended=False), None, "Not to its end: 2 of 100 rollouts"),
        (runs.healthy(2, ended=False), 1, "It was ended after 2 of 100 rollouts: the job failed"),
        (
            [
                *runs.healthy(2, ended=False),
                {"time": runs.START, "kind": "end", "status": "failed", "error": "oom"},
            ],
            1,
            "It failed after 2 of 100 rollouts: oom",
        ),
    ],
)
def test_a_run_that_did_not_end_well_has_a_page_that_says_so(tmp_path, events, exit_code, said):
    _, text = write(tmp_path / "run", events, exit_code=exit_code)
    assert said in text


def test_a_run_without_a_manifest_or_with_a_broken_one_has_a_page(tmp_path):
    run, _ = write(tmp_path / "run", runs.healthy(2))
    (run / "run_manifest.json").write_text("{")
    assert "not recorded" in made(run)


def test_tasks_failures_settings_and_pins_are_there(tmp_path):
    def truncated(_rollout, trial):
        if trial["sample"] % 10 == 0:
            trial["exit_status"] = "TurnLimitExceeded"

    run = runs.write(tmp_path / "run", runs.healthy(3, trial=truncated))
    manifest = json.loads((run / "run_manifest.json").read_text())
    manifest["settings"]["lr"] = {"value": 3e-5, "source": "argument"}
    (run / "run_manifest.json").write_text(json.dumps(manifest))
    text = made(run)
    assert "task-007" in text
    assert "TurnLimitExceeded" in text
    assert re.search(r"<th>LR</th><td[^>]*>3e-05</td><td[^>]*>argument</td>", text)
    assert "<th>SANDBOX_BACKEND</th>" not in text  # a default
    assert "https://example.org/miles@0123456789" in text


def test_of_each_task_the_telling_trials_are_shown_and_the_rest_is_counted(tmp_path, monkeypatch):
    run = runs.write(tmp_path / "run", runs.healthy(2, started=3, kept=3))
    for event in map(json.loads, (run / "events.jsonl").read_text().splitlines()):
        if event["kind"] == "group":
            for one in event["trials"]:
                put_trial(run, one["trial_name"], [f"said by {one['trial_name']}"])
    text = made(run)
    assert set(re.findall(r"<summary>(task-\d+)", text)) == {f"task-{index:03d}" for index in range(6)}
    assert "said by task-000__r0000-00-0" in text
    assert "said by task-000__r0000-00-7" in text
    assert "had no room" not in text
    monkeypatch.setattr(page, "TRAJECTORIES", 5)
    fewer = made(run)
    assert fewer.count("<summary><b>") == 5
    assert f"{text.count('<summary><b>') - 5} more of these had no room" in fewer
    monkeypatch.setattr(page, "TEXT_BYTES", 500)
    assert 0 < made(run).count("<summary><b>") < 5


def test_the_same_events_give_the_same_page_and_curves_in_the_colours_of_the_page(tmp_path):
    run = runs.write(tmp_path / "run", runs.healthy(2))
    pages = []
    for _ in range(2):
        report.show(run, Console(file=io.StringIO()))
        pages.append((run / "report" / "index.html").read_text())
    assert pages[0] == pages[1]
    assert "var(--line-1)" in pages[0]
    drawn = pages[0][pages[0].index("<svg") : pages[0].rindex("</svg>")]
    assert not {colour for colour in curves.VARIABLES if colour in drawn}


def test_what_was_planned_stands_beside_what_was_measured(tmp_path):
    from recipe.resolve import load

    words = ("RUNS_ROOT=" + str(tmp_path), "RUN_NAME=run")
    settings = load("smoke", words)
    run = runs.write(tmp_path / "run", runs.healthy(2), **settings.public())
    report.show(run, Console(file=io.StringIO()))
    text = (run / "report" / "index.html").read_text()
    assert "Plan against measured" in text
    assert "turns of a trial" in text


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH")
def test_the_page_shows_right_in_a_browser_on_a_screen_and_on_a_phone_by_day_and_by_night(attacked, tmp_path):
    opened = "document.querySelectorAll('details').forEach(one => { one.open = true })"
    width_of = "document.documentElement.scrollWidth"
    colour_of = "getComputedStyle(document.body).backgroundColor"
    colours = set()
    with chromium(tmp_path / "profile") as browser:
        for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
            view = browser.look(
                attacked, width=width, dark=dark, ask=(opened, width_of, colour_of, "document.title")
            )
            assert view.requests == [attacked.as_uri()]
            assert view.messages == []
            assert view.scroll_width <= width
            assert view.answers[width_of] <= width
            assert view.answers["document.title"] == "run"
            assert "Did it learn?" in view.text
            assert view.screenshot.startswith(b"\x89PNG")
            colours.add(view.answers[colour_of])
    assert len(colours) == 2


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH")
def test_the_browser_of_these_tests_would_notice_a_script_a_request_and_a_wide_page(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<meta name=viewport content='width=device-width'><title>x</title><div style='width: 900px'>wide</div>"
        "<img src=missing.png><script>document.title = 'hacked'; console.error('oops')</script>"
    )
    with chromium(tmp_path / "profile") as browser:
        view = browser.look(bad, width=390, ask=("document.title",))
    assert view.scroll_width > 390
    assert len(view.requests) == 2
    assert any("oops" in message for message in view.messages)
    assert view.answers["document.title"] == "hacked"


@pytest.mark.parametrize(("rise", "clear"), [(0.00001, False), (0.3, True)])
def test_without_any_spread_only_what_is_seen_is_a_change(rise, clear):
    of = {"reward_std": 0.0, "trials": 8}
    found = [Rollout(n, {**of, "reward_mean": 0.5 + rise * (n > 1)}, {}, 0.0) for n in range(4)]
    assert bool(page.learned(found)["beyond_chance"]) == clear
