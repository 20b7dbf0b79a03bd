"""Each check of the nodes holds on sound ones, and fails on what it is for: all on plain data."""

from __future__ import annotations

from typing import Any

import pytest
from doctor.node_facts import GIB, node, nodes, process, settings_of

from recipe.doctor.node_checks import NAMED, NODE_CHECKS
from recipe.doctor.nodes import judge, question
from recipe.doctor.results import Result, require
from recipe.errors import BadInputError

GPU = {"name": "NVIDIA H100", "memory_mib": 81559, "memory_used_mib": 4, "driver": "570.86.15"}
OF_PINS = node()["heads"]
SHORT = {"features_lacking": ["session servers get time to start"]}
FULL = {"free": 50 * GIB, "used": 0.96, "inodes": 5}
# For each check: facts of a node with which it fails, and what is then said to be found there.
FAILING: dict[str, list[tuple[dict[str, Any], str]]] = {
    "nodes": [({"error": "no answer within 120 s"}, "no answer within 120 s"), ({"alive": 9}, "one of 9")],
    "versions": [({"python": "3.12.4"}, "Python 3.12.4, Ray 2.60.0"), ({"ray": "2.61.0"}, "Ray 2.61.0")],
    "packages": [({"packages": {"torch": "2.9.0"}}, "torch 2.9.0"), ({"packages": {}}, "none")],
    "free GPUs": [({"ray_gpus_available": 7.0}, "7"), ({"ray_gpus_available": 16.0}, "16")],
    "GPUs": [
        ({"gpus": [GPU] * 8}, "8 x NVIDIA H100, 81559 MiB"),
        ({"gpus": node()["gpus"][:7]}, "7 x NVIDIA H200"),
        ({"gpus": [*node()["gpus"][:7], GPU]}, "1 x NVIDIA H100"),
        ({"gpus": []}, "none"),
    ],
    "driver": [({"gpus": [{**node()["gpus"][0], "driver": "550.1"}] * 8}, "550.1")],
    "CUDA": [({"cuda": "12.8.0"}, "12.8.0"), ({"cuda": None}, "none")],
    "leftovers": [
        (
            {"leftovers": [process("earlier", gpu_memory_mib=900)]},
            "pid 7 of someone, of run earlier, 900 MiB of a GPU",
        ),
        ({"leftovers": [process(pid=8)]}, "pid 8 of someone: sglang::router"),
    ],
    "pin file": [({"pins": None}, "no pin file"), ({"pins": {"schema": 1}}, "of other pins")],
    "commits": [
        ({"heads": OF_PINS | {"miles": None}}, "miles at no commit"),
        ({"heads": OF_PINS | {"sglang": "a" * 40}}, f"sglang at {'a' * 40}"),
        ({"changed": {"miles": 0, "sglang": 2}}, "sglang: 2 changed files"),
    ],
    "Megatron": [
        ({"heads": OF_PINS | {"megatron": None}}, "no commit"),
        ({"heads": OF_PINS | {"megatron": None}, "megatron": False}, "missing"),
    ],
    "features": [({"features_lacking": ["surplus trials are cancelled"]}, "surplus trials are cancelled")],
    "imported SGLang": [({"sglang": "/usr/lib/sglang"}, "/usr/lib/sglang"), ({"sglang": None}, "None")],
    "router": [
        ({"router": {"dropped": ["input_ids"]}, "head": True}, "drops input_ids"),
        ({"router": {"error": "no request arrived"}, "head": True}, "no request arrived"),
    ],
    "memory": [({"memory_available_mib": 1000 * 1024}, "1000")],
    "session servers' memory": [({"memory_available_mib": 76 * 1024, "head": True}, "76")],
    "session servers' start": [
        (
            {"session_servers": {"seconds": 131.0, "cpu_seconds": 1, "cores": 2}, "head": True},
            "131 s (two took 131.0 s",
        ),
        (
            {"session_servers": {"seconds": 9.0, "cpu_seconds": 9, "cores": 4}, "head": True},
            "144 s (two took 9.0 s",
        ),
        ({"session_servers": {"error": "no module named miles"}, "head": True}, "no module named miles"),
        (
            {**SHORT, "session_servers": {"skipped": "no Miles"}, "head": True},
            "128 s as a rule (no Miles), 30 s given",
        ),
    ],
    "shared memory": [({"shared_memory_bytes": 64 * GIB - 1}, "63")],
    "memlock": [({"limits": {"memlock": 2**40, "stack": -1, "nofile": -1}}, str(2**40))],
    "stack": [({"limits": {"memlock": -1, "stack": 2**23, "nofile": -1}}, str(2**23))],
    "open files": [({"limits": {"memlock": -1, "stack": -1, "nofile": 1024}}, "1024")],
    "clock": [({"skew_seconds": 2.0}, "2.0"), ({"skew_seconds": -3.4}, "-3.4")],
    "temporary space": [
        (
            {"space": {"/tmp/ray": {"free": 50 * GIB - 1, "used": 0.5, "inodes": 5}}},
            "/tmp/ray: 50 GiB free, 50% used",
        ),
        ({"space": {"/tmp": FULL}}, "/tmp: 50 GiB free, 96% used"),
    ],
    "route to the head": [
        ({"route": {"error": "timed out"}}, "does not reach it: timed out"),
        ({"route": {"address": "169.254.3.1"}}, "169.254.3.1 of an interface without a name, link-local"),
        ({"route": {"address": "172.17.0.1"}}, "172.17.0.1 of docker0"),
        ({"interfaces": {"br-1a2b": "10.0.0.8"}}, "10.0.0.8 of br-1a2b"),
    ],
    "interfaces": [({"interfaces": {"eth0": "10.0.0.8"}}, "ib")],
    "shared RUNS_ROOT": [({"shared": "[Errno 2] No such file"}, "[Errno 2] No such file")],
    "models": [
        ({"models": {"/m/index.json": "ffff"}}, "index.json ffff"),
        ({"models": {"/m/index.json": None}}, "index.json missing"),
    ],
    "checkpoints' space": [
        ({"runs_space": FULL | {"inodes": None}, "head": True}, "54 GB free of 1620 GB"),
        ({"runs_space": node()["runs_space"] | {"inodes": 10}, "head": True}, "10 inodes free of 430600"),
    ],
}
# The settings under which a failing case is one.
WORDS = {"interfaces": ["NCCL_SOCKET_IFNAME=ib"], "pin file": ["STRICT_PINS=1"], "commits": ["STRICT_PINS=1"]}
CASES = [(name, facts, found) for name, cases in FAILING.items() for facts, found in cases]


def result_of(name: str, *told: dict[str, Any], words: list[str] | None = None) -> Result:
    (result,) = judge(told, settings_of(*(WORDS.get(name, []) if words is None else words)), [name])
    return result


def test_every_check_has_a_case_in_which_it_fails():
    assert list(FAILING) == [check.name for check in NODE_CHECKS]


def test_sound_nodes_pass_every_check():
    strict = settings_of("STRICT_PINS=1", "NCCL_SOCKET_IFNAME==eth0", "GLOO_SOCKET_IFNAME=eth0")
    results = judge(nodes(), strict)
    assert [(one.check, one.verdict, one.found) for one in results if one.verdict != "ok"] == []
    require(results)


@pytest.mark.parametrize(
    ("name", "facts", "found"), CASES, ids=[f"{name}-{found}" for name, _, found in CASES]
)
def test_a_check_fails_on_what_it_is_for_and_names_the_node(name, facts, found):
    result = result_of(name, *nodes(**facts))
    assert (result.verdict, list(result.bad)) == ("FAIL", ["10.0.0.8"])
    assert found in result.cells["10.0.0.8"]
    with pytest.raises(BadInputError, match=f"not every node is fit: {name}") as refused:
        require([result])
    assert found in refused.value.facts["found"]
    assert "10.0.0.8: " in refused.value.facts["found"]
    assert refused.value.facts["check"] == name
    assert refused.value.facts["expected"]
    assert refused.value.facts["run"]


@pytest.mark.parametrize(("name", "facts"), [(name, FAILING[name][0][0]) for name in ("pin file", "commits")])
def test_other_commits_warn_without_strict_pins(name, facts):
    result = result_of(name, *nodes(**facts), words=[])
    assert result.verdict == "warn"
    require([result])


def test_fewer_nodes_than_asked_for_fail_and_so_do_more():
    for count in (7, 9):
        result = result_of("nodes", *(node(number, alive=count) for number in range(1, count + 1)))
        assert (result.verdict, len(result.bad)) == ("FAIL", count)


def test_a_node_that_does_not_answer_is_in_no_other_check():
    silent = {"ip": "10.0.0.9", "error": "gone", "head": False, "alive": 9, "router": {}}
    results = judge([*nodes(), silent], settings_of())
    assert {one.check for one in results if "10.0.0.9" in one.cells} == {"nodes"}
    assert {one.check for one in results if one.verdict == "FAIL"} == {"nodes"}


def test_without_any_answer_the_other_checks_are_skipped():
    silent = {"ip": "10.0.0.1", "error": "gone", "head": True, "alive": 1, "router": {}}
    assert {one.verdict for one in judge([silent], settings_of())[1:]} == {"skip"}


def test_what_can_not_be_told_is_skipped_with_its_reason():
    result = result_of("router", node(router={"skipped": "this Python has no sglang_router"}))
    assert (result.verdict, result.found) == ("skip", "this Python has no sglang_router")


def test_skipped_checks_are_told_and_do_not_refuse():
    results = judge(nodes(ray_gpus_available=0.0), settings_of(), skip=["free GPUs"])
    require(results)
    assert [one.check for one in results if one.verdict == "skip"] == ["free GPUs"]


@pytest.mark.parametrize(
    ("nccl", "gloo", "absent"),
    [
        ("^docker", "", []),
        ("eth,ib", "eth0", []),
        ("=eth", "", ["eth"]),
        ("=eth0", "ib1", ["ib1"]),
        ("en", "", ["en"]),
    ],
)
def test_interfaces_are_named_as_nccl_and_gloo_read_them(nccl, gloo, absent):
    words = [f"NCCL_SOCKET_IFNAME={nccl}", *([f"GLOO_SOCKET_IFNAME={gloo}"] if gloo else [])]
    result = result_of("interfaces", node(), words=words)
    assert result.found == (f"10.0.0.1: {absent[0]}" if absent else "fine")


def test_a_checkpoint_is_as_large_as_the_model_or_what_its_index_should_tell():
    room = {"free": 1640 * 10**9, "used": 0.0, "inodes": None}
    assert result_of("checkpoints' space", node(runs_space=room)).verdict == "ok"
    assert result_of("checkpoints' space", node(runs_space=room, model_bytes=None)).verdict == "FAIL"


def test_a_small_pool_of_session_servers_starts_in_any_miles():
    facts = {**SHORT, "session_servers": {"skipped": "it was not asked"}, "head": True}
    assert result_of("session servers' start", node(**facts), words=["SESSION_SERVERS=15"]).verdict == "ok"
    assert result_of("session servers' start", node(**facts), words=["SESSION_SERVERS=16"]).verdict == "FAIL"


def test_of_many_leftovers_some_are_named_and_the_others_counted():
    result = result_of("leftovers", node(leftovers=[process(pid=pid) for pid in range(NAMED + 3)]))
    lines = result.found.splitlines()
    assert (len(lines), lines[-1]) == (NAMED + 1, "  and 3 more")


def test_what_several_nodes_lack_is_said_once():
    assert result_of("memlock", *nodes(), words=[]).verdict == "ok"
    low = {"memlock": 5, "stack": -1, "nofile": -1}
    assert (
        result_of("memlock", node(1), node(2, limits=low), node(3, limits=low)).found
        == "10.0.0.2, 10.0.0.3: 5"
    )
    assert result_of("memlock", node(1, limits=low), node(2, limits=low)).found == "every node: 5"


def test_the_question_holds_every_condition_on_the_sources_and_no_secret():
    asked = question(settings_of("LOAD_DIR=/earlier"), ["run-1"])
    features = {one["name"]: one for one in asked["features"]}
    assert features["raw completions are parsed"]["present"] == "InklingResponseParser"
    assert "timeout=30" in features["session servers get time to start"]["absent"]
    assert {one["source"] for one in asked["features"]} == {"miles"}
    assert asked["clean"] == ["run-1"]
    assert "/earlier/latest_checkpointed_iteration.txt" in asked["models"]
