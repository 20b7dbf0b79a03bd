"""What the nodes tell decides whether a run starts: each refusal on plain data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from recipe.errors import BadInputError
from recipe.job import RayAddress
from recipe.pins import load_pins
from recipe.resolve import load
from recipe.run import nodes

PINS = load_pins().recipes["camel"].sources


def process(run: str | None = None, **facts: Any) -> dict[str, Any]:
    return {
        "pid": 7,
        "user": "someone",
        "command": "sglang::router",
        "run": run,
        "gpu_memory_mib": None,
    } | facts


def node(*leftovers: dict[str, Any], **facts: Any) -> dict[str, Any]:
    heads = {f"{name}_head": PINS[name].rev for name in ("miles", "sglang")}
    told = {
        "ip": "10.0.0.1",
        "error": None,
        "ray_gpus_available": 8.0,
        "leftovers": list(leftovers),
        "cleaned": [],
    }
    return told | heads | facts


def others(count: int, **facts: Any) -> list[dict[str, Any]]:
    return [node(ip=f"10.0.0.{number + 2}", **facts) for number in range(count)]


class Cluster:
    """Answers as the nodes would; `cleaned` is what it was told to clean."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *answers: list[dict[str, Any]], jobs: tuple[str, ...]
    ) -> None:
        self.answers, self.cleaned, self.said = list(answers), [], []
        monkeypatch.setattr(nodes, "_ask", self._ask)
        monkeypatch.setattr(nodes, "running", lambda _: set(jobs))

    def _ask(self, _run: object, _ray: object, _plugins: object, clean: list[str]) -> list[dict[str, Any]]:
        self.cleaned += clean
        return self.answers.pop(0)

    def look(self, *words: str) -> list[dict[str, Any]]:
        settings = load("train-camel", ["HEAD_IP=10.0.0.1", "TASKS_DIR=t", "RUNS_ROOT=/runs", *words])
        run = SimpleNamespace(settings=settings, display=SimpleNamespace(note=self.said.append))
        return nodes.look(run, RayAddress("http://10.0.0.1:8265"), None)


@pytest.fixture
def cluster(monkeypatch):
    return lambda *answers, jobs=(): Cluster(monkeypatch, *answers, jobs=jobs)


def test_nodes_with_nothing_left_and_gpus_enough_are_taken(cluster):
    eight = others(8)
    one = cluster(eight)
    assert one.look() == eight
    assert (one.said, one.cleaned) == ([], [])


def test_a_node_that_does_not_answer_refuses_the_start(cluster):
    silent = node(error="no answer within 120 s")
    with pytest.raises(
        BadInputError, match=r"1 nodes could not be looked at\n.*10.0.0.1: no answer within 120 s"
    ):
        cluster([node(), silent]).look()


@pytest.mark.parametrize(
    ("free", "words", "refused"),
    [(8.0, (), False), (7.0, (), True), (7.0, ("NUM_NODES=7",), False), (6.0, ("NUM_NODES=7",), True)],
)
def test_too_few_free_gpus_refuse_the_start(cluster, free, words, refused):
    one = cluster(others(8, ray_gpus_available=free))
    if not refused:
        assert one.look(*words)
        return
    with pytest.raises(BadInputError, match="too few GPUs are free") as raised:
        one.look(*words)
    assert raised.value.facts["expected"].startswith("64 " if not words else "56 ")
    assert f"10.0.0.2: {free:g}, 10.0.0.3: " in raised.value.facts["found"]


def test_leftovers_refuse_the_start_with_pid_owner_run_and_gpu_memory(cluster):
    found = [process("earlier", gpu_memory_mib=900), process(pid=8)]
    with pytest.raises(BadInputError, match="are left on the nodes") as raised:
        cluster([node(*found)]).look()
    assert raised.value.facts["found"].splitlines() == [
        "10.0.0.1: pid 7 of someone, of run earlier, 900 MiB of a GPU: sglang::router",
        "10.0.0.1: pid 8 of someone: sglang::router",
    ]
    assert "CLEAN_LEFTOVERS=1" in raised.value.facts["run"]


def test_of_many_leftovers_some_are_named_and_the_others_counted(cluster):
    with pytest.raises(BadInputError) as raised:
        cluster([node(*(process(pid=pid) for pid in range(nodes.NAMED + 3)))]).look()
    *named, last = raised.value.facts["found"].splitlines()
    assert (len(named), last) == (nodes.NAMED, "and 3 more")


def test_cleaning_names_the_runs_of_leftovers_and_tells_how_each_ended(cluster):
    ended = node(cleaned=[process("earlier", outcome="killed")])
    one = cluster([node(process("earlier"), process("earlier", pid=8))], [ended, *others(7)])
    one.look("CLEAN_LEFTOVERS=1")
    assert one.cleaned == ["earlier"]
    assert one.said == ["10.0.0.1: killed: pid 7 of someone, of run earlier: sglang::router"]


def test_processes_of_others_refuse_the_start_and_are_never_cleaned(cluster):
    one = cluster([node(process())])
    with pytest.raises(BadInputError, match="are left on the nodes") as raised:
        one.look("CLEAN_LEFTOVERS=1")
    assert one.cleaned == []
    assert raised.value.facts["run"] == "ask their owners to end them"


@pytest.mark.parametrize("words", [(), ("CLEAN_LEFTOVERS=1",)])
def test_what_belongs_to_a_job_that_runs_is_no_leftover_and_never_cleaned(cluster, words):
    one = cluster([node(process("earlier"), process("going"))], jobs=("going-0123abcd",))
    with pytest.raises(BadInputError, match="another run is going on") as raised:
        one.look(*words)
    assert one.cleaned == []
    assert raised.value.facts["found"] == "going"
    assert raised.value.facts["run"].startswith("recipe attach /runs/going,")


def test_the_job_of_a_run_with_a_longer_name_is_not_taken_for_its_own(cluster):
    one = cluster([node(process("earlier"))], others(8), jobs=("earlier-1-0123abcd", "earlier"))
    one.look("CLEAN_LEFTOVERS=1")
    assert one.cleaned == ["earlier"]


def test_other_commits_are_a_warning_and_with_strict_pins_a_refusal(cluster):
    nodes_there = [node(miles_head=None), *others(7)]
    one = cluster(nodes_there)
    one.look()
    assert one.said == [
        "warning: checkouts are not at the recipe's commits (10.0.0.1: miles at no commit)",
    ]
    with pytest.raises(BadInputError, match="checkouts are not at the recipe's commits") as raised:
        cluster(nodes_there).look("STRICT_PINS=1")
    assert PINS["miles"].rev in raised.value.facts["expected"]
