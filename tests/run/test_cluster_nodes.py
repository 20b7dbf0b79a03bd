"""What the launcher does with what the nodes tell: it refuses, cleans what it may, and says what it let pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from doctor.node_facts import node, nodes, process, settings_of

from recipe.errors import BadInputError
from recipe.job import RayAddress
from recipe.run import nodes as launcher


class Cluster:
    """Answers as the nodes would; `cleaned` is what it was told to clean."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *answers: list[dict[str, Any]], jobs: tuple[str, ...]
    ) -> None:
        self.answers, self.cleaned, self.said, self.recorded = list(answers), [], [], {}
        monkeypatch.setattr(launcher, "ask", self.ask)
        monkeypatch.setattr(launcher, "running", lambda _: set(jobs))

    def ask(self, *arguments: Any) -> list[dict[str, Any]]:
        self.cleaned += arguments[5] if len(arguments) > 5 else []
        return self.answers.pop(0)

    def look(self, *words: str, skip: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        run = SimpleNamespace(
            settings=settings_of(*words),
            display=SimpleNamespace(note=self.said.append),
            folder=SimpleNamespace(path=Path("/runs/new")),
            interrupts=None,
            manifest=SimpleNamespace(add=lambda **facts: self.recorded.update(facts)),
        )
        return launcher.look(run, RayAddress("http://10.0.0.1:8265"), Path(), skip)


@pytest.fixture
def cluster(monkeypatch):
    return lambda *answers, jobs=(): Cluster(monkeypatch, *answers, jobs=jobs)


def test_sound_nodes_are_taken_and_nothing_is_said(cluster):
    one = cluster(nodes())
    assert one.look() == nodes()
    assert (one.said, one.cleaned) == ([], [])


def test_every_failure_is_told_at_once_by_its_check(cluster):
    with pytest.raises(BadInputError) as refused:
        cluster(nodes(ray_gpus_available=0.0, shared="[Errno 30] Read-only file system")).look()
    assert "free GPUs" in str(refused.value)
    assert "10.0.0.8: [Errno 30] Read-only file system" in str(refused.value)


def test_a_check_that_is_skipped_does_not_refuse_and_is_told(cluster):
    one = cluster(nodes(ray_gpus_available=0.0))
    one.look(skip=("free GPUs",))
    assert one.said == ["skipped: free GPUs: as asked"]
    assert one.recorded == {"checks": {"free GPUs": "skip: as asked"}}


def test_cleaning_names_the_runs_of_leftovers_and_tells_how_each_ended(cluster):
    ended = nodes(cleaned=[process("earlier", outcome="killed")])
    one = cluster(nodes(leftovers=[process("earlier"), process("earlier", pid=8)]), ended)
    one.look("CLEAN_LEFTOVERS=1")
    assert one.cleaned == ["earlier"]
    assert one.said == ["10.0.0.8: killed: pid 7 of someone, of run earlier: sglang::router"]


def test_processes_of_others_refuse_the_start_and_are_never_cleaned(cluster):
    one = cluster(nodes(leftovers=[process()]))
    with pytest.raises(BadInputError, match="leftovers"):
        one.look("CLEAN_LEFTOVERS=1")
    assert one.cleaned == []


@pytest.mark.parametrize("words", [(), ("CLEAN_LEFTOVERS=1",)])
def test_what_belongs_to_a_job_that_runs_is_no_leftover_and_never_cleaned(cluster, words):
    one = cluster([node(leftovers=[process("earlier"), process("going")])], jobs=("going-0123abcd",))
    with pytest.raises(BadInputError, match="another run is going on") as raised:
        one.look(*words)
    assert one.cleaned == []
    assert raised.value.facts["found"] == "going"
    assert raised.value.facts["run"].startswith("recipe attach /runs/going,")


def test_the_job_of_a_run_with_a_longer_name_is_not_taken_for_its_own(cluster):
    one = cluster(nodes(leftovers=[process("earlier")]), nodes(), jobs=("earlier-1-0123abcd", "earlier"))
    one.look("CLEAN_LEFTOVERS=1")
    assert one.cleaned == ["earlier"]


def test_other_commits_are_a_warning_and_with_strict_pins_a_refusal(cluster):
    other = nodes()
    other[1]["heads"] = other[1]["heads"] | {"miles": None}
    one = cluster(other, other)
    one.look()
    assert one.said == ["warning: commits: 10.0.0.2: miles at no commit"]
    with pytest.raises(BadInputError, match="commits"):
        one.look("STRICT_PINS=1")
