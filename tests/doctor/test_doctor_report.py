"""The doctor's tables: what was found and expected, the verdict, what to run; chosen checks alone; the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doctor.node_facts import nodes, settings_of
from rich.console import Console

from recipe.doctor import checks
from recipe.doctor import report as doctor
from recipe.doctor.nodes import judge
from recipe.doctor.report import NAMES, report
from recipe.doctor.symptoms import LOCAL, START, markdown
from recipe.errors import BadInputError, RecipeError
from recipe.resolve import load
from recipe.run import dashboard

PAGE = Path(__file__).parents[2] / "docs" / "symptoms.md"


def results(capsys) -> dict[str, dict]:
    return {one["check"]: one for one in json.loads(capsys.readouterr().out)["results"]}


def test_on_a_laptop_what_needs_the_cluster_is_skipped_with_its_reason(empty_folder, capsys):
    settings = settings_of(
        f"RUNS_ROOT={empty_folder}", f"TASKS_DIR={Path(doctor.__file__).parents[1] / 'tasks/smoke'}"
    )
    assert report(settings, as_json=True, cluster=False) == 0
    told = results(capsys)
    assert told["tasks"]["verdict"] == "ok"
    assert (told["weights"]["verdict"], told["weights"]["found"]) == ("skip", "it is about the head node")
    assert (told["clock"]["verdict"], told["clock"]["found"]) == ("skip", "it needs the cluster")
    assert set(told) < set(NAMES)


def test_a_failure_is_the_exit_code_and_names_what_to_run(empty_folder, capsys):
    (empty_folder / "runs/used").mkdir(parents=True)
    assert report(load("smoke", ["RUN_NAME=used"]), only=["run folder", "tasks"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "the run folder is in use" in out
    assert "the same command without RUN_NAME" in out
    assert out.endswith("doctor: 1 ok, 1 FAIL, 0 warn, 0 skip\n")


def test_what_is_skipped_fails_no_more_and_is_shown(empty_folder, capsys):
    (empty_folder / "runs/used").mkdir(parents=True)
    settings = load("smoke", ["RUN_NAME=used"])
    assert report(settings, only=["run folder", "tasks"], skip=["run folder"], as_json=True) == 0
    assert results(capsys)["run folder"]["found"] == "as asked"


def test_what_was_chosen_and_could_not_be_checked_is_no_success(empty_folder, capsys):
    assert report(settings_of("SANDBOX_BACKEND=docker"), only=["sandbox account"]) == 1
    assert "none of what was chosen could be checked" in capsys.readouterr().out
    assert report(settings_of(), only=["HF token", "clock"], cluster=False) == 1
    # Of the other engine.
    assert report(load("smoke"), only=["model"]) == 1


def test_a_check_that_fails_itself_costs_no_other_row_and_shows_no_key(empty_folder, capsys, monkeypatch):
    def broken(_settings, _prompts):
        yield from json.loads('"dtn_SECRET')

    def refused(_settings, _prompts):
        raise RecipeError("a service is away", found="503")

    odd = (checks.Check("tasks", "", broken, ""), checks.Check("weights", "", refused, ""))
    chosen = [check for check in checks.CHECKS if check.name == "runs root"]
    monkeypatch.setattr(checks, "CHECKS", (*odd, *chosen))
    assert report(load("smoke"), as_json=True) == 1
    told = results(capsys)
    assert [(one["verdict"]) for one in told.values()] == ["FAIL", "FAIL", "ok"]
    assert told["tasks"]["found"].startswith("the check itself failed: JSONDecodeError in ")
    assert told["weights"]["found"] == "a service is away: 503"
    assert "SECRET" not in str(told)


def test_a_cluster_that_makes_its_check_fail_is_a_row(monkeypatch, capsys):
    def broken(_settings):
        raise TypeError("odd")

    monkeypatch.setattr(dashboard, "find_ray", broken)
    assert report(settings_of(), only=["Ray", "clock"], as_json=True) == 1
    told = results(capsys)
    assert told["Ray"]["found"].startswith("the check itself failed: TypeError in broken")
    assert told["clock"]["verdict"] == "skip"


@pytest.mark.parametrize("options", [{"only": ["memlok"]}, {"skip": ["memlok"]}])
def test_what_is_no_check_is_refused_with_the_nearest_name(options):
    with pytest.raises(BadInputError, match="there is no such check") as refused:
        report(settings_of(), **options)
    assert refused.value.facts["expected"] == "memlock"


def test_without_a_ray_nothing_is_asked_and_that_alone_fails(capsys):
    settings = settings_of("HEAD_IP=127.0.0.1", "RAY_DASHBOARD_PORT=1")
    assert report(settings, only=["Ray", "clock"], as_json=True) == 1
    told = results(capsys)
    assert (told["Ray"]["verdict"], told["clock"]["verdict"]) == ("FAIL", "skip")
    assert "there is no Ray" in told["Ray"]["found"]


def test_the_cells_that_differ_are_marked_by_node(capsys):
    doctor._print(judge(nodes(cuda="12.8.0"), settings_of(), ["CUDA", "clock"]))
    out = capsys.readouterr().out
    header, cuda = (
        next(line for line in out.splitlines() if line.startswith(start)) for start in ("check", "CUDA")
    )
    assert header.split() == ["check", *(f"10.0.0.{number}" for number in range(1, 9))]
    assert cuda.split() == ["CUDA", *["12.9.1"] * 7, "*", "12.8.0"]


def test_in_a_narrow_terminal_no_check_and_no_node_loses_its_name(capsys):
    told = judge(nodes(), settings_of(), ["imported SGLang"])
    Console(width=80).print(doctor._by_node(told, list(told[0].cells)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert any(line[:2] == ["imported", "SGLang"] for line in lines)
    names = zip(*(line[-8:] for line in lines if line[-1][0].isdigit()), strict=True)
    assert ["".join(parts) for parts in names] == [f"10.0.0.{number}" for number in range(1, 9)]


def test_names_are_told_apart():
    assert len(set(NAMES)) == len(NAMES)


def test_the_page_of_symptoms_is_as_the_checks_write_it():
    assert markdown(PAGE.read_text()) == PAGE.read_text()


def test_the_page_has_every_check_and_says_which_the_doctor_does_not_make():
    doctors, _, local = PAGE.read_text().partition(START)[2].partition(LOCAL)
    named = [
        [line.split(" | ")[-1].removesuffix(" |") for line in part.splitlines()] for part in (doctors, local)
    ]
    assert {check.name for check in checks.CHECKS if check.engine == "local"} <= set(named[1])
    assert set(NAMES) - set(named[1]) <= set(named[0])


def test_a_page_without_its_mark_is_refused():
    with pytest.raises(BadInputError, match="lost its mark"):
        markdown("# Symptoms\n")
    assert markdown(f"by hand\n{START}\nold").startswith(f"by hand\n{START}\n\n| ")
