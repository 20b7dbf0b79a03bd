"""What differs between two runs is found, all of it and nothing else."""

from __future__ import annotations

import io
import json

import pytest
import runs
from browser import CHROMIUM, chromium
from rich.console import Console

from recipe.watch import compare
from recipe.watch.history import read

NODE = {"ip": "10.0.0.1", "memory_available_mib": 1, "cuda": "12.9", "gpus": []}


@pytest.fixture
def pair(tmp_path):
    """Two runs that differ in nothing, and a way to change the manifest of either."""
    folders = tuple(runs.write(tmp_path / name, runs.healthy(4)) for name in ("a", "b"))

    def change(place: int, **facts):
        path = folders[place] / "run_manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | facts))

    return folders, change


def found(folders):
    manifests = [json.loads((folder / "run_manifest.json").read_text()) for folder in folders]
    return list(compare.differences(*manifests))


def shown(folders, html=None, **console) -> str:
    out = io.StringIO()
    compare.show(folders, Console(file=out, **{"width": 120, **console}), html)
    return out.getvalue()


def test_runs_that_differ_only_in_name_differ_in_nothing(pair):
    folders, _ = pair
    assert found(folders) == []
    text = shown(folders)
    assert "They ran with the same pins, settings, data, nodes and versions." in text
    assert "4 rollouts, succeeded" in text


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ({"commit": "a" * 40}, {"commit": "b" * 40}, ("version", "commit", "a" * 40, "b" * 40)),
        ({"pins": {"miles": "x@1"}}, {"pins": {"miles": "x@2"}}, ("pin", "miles", "x@1", "x@2")),
        (
            {"settings": {"lr": {"value": 1e-5, "source": "default"}}},
            {"settings": {"lr": {"value": 3e-5, "source": "argument"}}},
            ("setting", "LR", "1e-05", "3e-05"),
        ),
        ({"prompt_data": {"sha256": "1"}}, {"prompt_data": {"sha256": "2"}}, ("data", "sha256", "1", "2")),
        ({"tasks": {"t": "1"}}, {"tasks": {}}, ("task", "t", "1", "-")),
        ({"packages": {"ray": "1"}}, {"packages": {"ray": "2"}}, ("version", "ray", "1", "2")),
        ({"nodes": [NODE]}, {"nodes": [NODE | {"cuda": "13"}]}, ("node 1", "cuda", "12.9", "13")),
    ],
)
def test_each_kind_of_difference_is_found_and_shown(pair, first, second, difference):
    folders, change = pair
    change(0, **first)
    change(1, **second)
    assert found(folders) == [difference]
    text = shown(folders)
    assert all(part in text for part in difference[:2])
    assert "same pins" not in text


def test_what_is_a_runs_own_or_passes_is_no_difference(pair):
    folders, change = pair
    own = {name: {"value": "elsewhere", "source": "argument"} for name in compare.OWN}
    change(0, nodes=[NODE], prompt_data={"path": "a"}, settings={})
    change(1, nodes=[NODE | {"memory_available_mib": 2}], prompt_data={"path": "b"}, settings=own)
    assert found(folders) == []


def test_curves_are_compared_at_their_ends(tmp_path):
    def rewards(*values):
        events = runs.healthy(len(values))
        for event in events:
            if event["kind"] == "rollout":
                event["metrics"]["reward_mean"] = values[event["rollout"]]
        return events

    first = read(runs.write(tmp_path / "a", rewards(0.1, 0.2, 0.3, 0.4)))
    second = read(runs.write(tmp_path / "b", rewards(0.5, 0.6)))
    rows = dict(compare.curves(first, second))
    assert rows["Reward"] == pytest.approx([0.1, 0.5, 0.4, 0.6, 0.3, 0.55, 0.25])


def test_a_run_that_has_no_rollouts_is_compared_too(pair, tmp_path):
    folders, _ = pair
    empty = runs.write(tmp_path / "c", [], exit_code=None)
    page = tmp_path / "page.html"
    assert "0 rollouts, unfinished" in shown((folders[0], empty), page)
    assert "0 rollouts, unfinished" in page.read_text()


def test_no_word_is_cut_on_a_terminal_of_80_columns(pair):
    folders, change = pair
    settings = {name: {"value": 1, "source": "argument"} for name in ("over_sampling_batch_size", "lr")}
    change(0, settings=settings, pins={"miles": "https://example.org/" + "x" * 300})
    change(1, settings={name: {**of, "value": 2} for name, of in settings.items()})
    text = shown(folders, width=80, force_terminal=True, color_system=None)
    assert max(map(len, text.splitlines()[2:])) <= 80  # paths are never folded
    words = text.split()
    assert {
        "OVER_SAMPLING_BATCH_SIZE",
        "setting",
        "LR",
        "(nats/token)",
        "Train/rollout",
        "difference",
    } <= set(words)
    assert not [word for word in words if word.endswith("…")]


def test_values_are_text_and_never_markup(pair, tmp_path):
    folders, change = pair
    change(0, commit="[bold]x[/nothing] <script>alert(1)</script>\x1b[2J")
    page = tmp_path / "page.html"
    text = shown(folders, page)
    assert "[bold]x" in text
    assert "\x1b" not in text
    assert "<script" not in page.read_text()


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_a_window(pair, tmp_path, width):
    folders, change = pair
    change(0, pins={"miles": "https://example.org/" + "x" * 300})
    page = tmp_path / "page.html"
    shown(folders, page)
    with chromium(tmp_path / "profile") as browser:
        view = browser.look(page, width=width)
    assert view.scroll_width <= width
    assert view.requests == [page.as_uri()]
    assert view.messages == []
