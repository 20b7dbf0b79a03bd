"""Harbor's view of the local sandbox: which tasks it takes, how files go in and out, what a policy can't spoil."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from harbor.environments.base import SandboxBuildFailedError
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from recipe.errors import RecipeError
from recipe.harbor.local_env import LocalEnvironment

NO_NETWORK = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


def environment(task: Path, scratch_root: Path, policy: NetworkPolicy = NO_NETWORK, **config: object):
    return LocalEnvironment(
        environment_dir=task / "environment",
        environment_name="task",
        session_id="task__env",
        trial_paths=TrialPaths(task.parent.parent / "trial"),
        task_env_config=EnvironmentConfig(**config),
        network_policy=policy,
        scratch_root=str(scratch_root),
    )


def inside(env: LocalEnvironment, body: Callable[[LocalEnvironment], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await env.start(force_build=False)
            await body(env)
        finally:
            await env.stop(delete=True)

    asyncio.run(main())


async def said(box: LocalEnvironment, command: str, **options: object) -> str:
    done = await box.exec(command, **options)
    assert done.return_code == 0, done
    return done.stdout


def test_a_dockerfile_is_followed(make_task, scratch_root: Path) -> None:
    dockerfile = (
        "FROM x\nWORKDIR /srv/work\nENV WORD=hello\nCOPY --chmod=755 run.sh ./\nCOPY data /app/data\n"
        'RUN ./run.sh > built && test -z "$(ls -A /sys 2>/dev/null)"\nENV WORD=bye\n'
    )
    files = {"run.sh": "#!/bin/sh\necho $WORD $PWD\n", "data/deep/er.txt": "x\n"}

    async def body(env: LocalEnvironment) -> None:
        assert await said(env, "cat built") == "hello /srv/work\n"
        assert await said(env, "pwd; echo $WORD; cat /app/data/deep/er.txt") == "/srv/work\nbye\nx\n"
        assert await said(env, "stat -c %a run.sh") == "755\n"

    inside(environment(make_task(dockerfile=dockerfile, files=files), scratch_root), body)


def test_a_failing_run_names_its_line_and_leaves_nothing(make_task, scratch_root: Path) -> None:
    task = make_task(dockerfile="FROM x\nWORKDIR /app\nRUN echo no such luck >&2; exit 3\n")

    async def body(env: LocalEnvironment) -> None:
        raise AssertionError("it must not start")

    with pytest.raises(SandboxBuildFailedError, match=r"line 3 failed .* exit code 3: no such luck"):
        inside(environment(task, scratch_root), body)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"policy": NetworkPolicy()}, "no-network"),
        ({"gpus": 1}, "GPU"),
        ({"workdir": "/usr/src"}, "/usr/src"),
        ({"os": "windows"}, "windows"),
    ],
)
def test_a_task_that_needs_more_is_refused(make_task, scratch_root: Path, change: dict, reason: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=reason):
        environment(make_task(), scratch_root, **change)


def test_compose_images_and_unknown_lines_are_refused(make_task, scratch_root: Path) -> None:
    with pytest.raises(ValueError, match="docker-compose"):
        environment(make_task("a", files={"docker-compose.yaml": ""}), scratch_root)
    with pytest.raises(RecipeError, match="ADD is not among"):
        environment(make_task("b", dockerfile="FROM x\nADD y /\n"), scratch_root)
    image_only = make_task("c")
    (image_only / "environment/Dockerfile").unlink()
    with pytest.raises(ValueError, match="some/image"):
        environment(image_only, scratch_root, docker_image="some/image")


def test_exec_follows_harbor_in_users_timeouts_folders_and_variables(make_task, scratch_root: Path) -> None:
    async def body(env: LocalEnvironment) -> None:
        assert await said(env, "pwd; echo $A$B", env={"B": "2"}) == "/app\n2\n"
        assert await said(env, "pwd", cwd="/tmp", user="root") == "/tmp\n"
        with env.scoped_exec_env({"A": "1"}):
            assert await said(env, "echo $A") == "1\n"
        with pytest.raises(ValueError, match="agent"):
            await env.exec("true", user="agent")
        with pytest.raises(RuntimeError, match=r"Command timed out after 0\.2 seconds"):
            await env.exec("sleep 1000", timeout_sec=0.2)
        assert (await env.exec("printf '\\377'; exit 7")).model_dump() == {
            "stdout": "\ufffd",
            "stderr": "",
            "return_code": 7,
        }

    inside(environment(make_task(), scratch_root), body)


def test_files_go_in_and_out(make_task, scratch_root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep/run.sh").write_text("echo ran\n")
    (source / "deep/run.sh").chmod(0o755)

    async def body(env: LocalEnvironment) -> None:
        await env.upload_dir(source, "/solution")
        assert await said(env, "bash /solution/deep/run.sh; stat -c '%a %U' /solution/deep/run.sh") == (
            "ran\n755 root\n"
        )
        await env.upload_file(source / "deep/run.sh", "/app/new folder/it's.sh")
        await env.download_dir("/app", tmp_path / "out")
        await env.download_file("/solution/deep/run.sh", tmp_path / "file/run.sh")
        with pytest.raises(RuntimeError, match="No such file"):
            await env.download_file("/app/missing", tmp_path / "file/missing")

    inside(environment(make_task(), scratch_root), body)
    assert (tmp_path / "out/new folder/it's.sh").read_text() == "echo ran\n"
    assert (tmp_path / "file/run.sh").read_text() == "echo ran\n"


def test_of_a_download_only_plain_files_arrive(make_task, scratch_root: Path, tmp_path: Path) -> None:
    plant = """
    cd /logs/agent; echo fine > fine; ln fine hard; ln -s /etc/passwd link; ln -s . inner; mkfifo pipe
    mkdir -p folder; echo secret > locked; chmod 000 locked; ln -s /tmp folder/up
    python3 -c "import os
for _ in range(60): os.mkdir('n' * 200); os.chdir('n' * 200)
open('deep', 'w')"
    """

    async def body(env: LocalEnvironment) -> None:
        await env.exec("mkdir -p /logs/agent && " + plant.strip())
        await env.download_dir("/logs/agent", tmp_path / "out")

    inside(environment(make_task(), scratch_root), body)
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found - {"n" * 200} == {"fine", "hard", "folder"}
    assert (tmp_path / "out/hard").read_text() == "fine\n"
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]


def test_a_download_that_is_too_large_still_brings_the_reward(
    make_task, scratch_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recipe.harbor.local_env.TRANSFER_BYTES", 100_000)

    async def body(env: LocalEnvironment) -> None:
        await env.exec("cd /logs; echo 0.5 > reward.txt; head -c 200000 /dev/zero > test-stdout.txt")
        await env.download_dir("/logs", tmp_path / "out")

    inside(environment(make_task(), scratch_root), body)
    assert (tmp_path / "out/reward.txt").read_text() == "0.5\n"


def test_a_download_brings_a_bounded_number_of_files(make_task, scratch_root: Path, tmp_path: Path) -> None:
    async def body(env: LocalEnvironment) -> None:
        await env.exec("mkdir /logs/many; cd /logs/many; touch `seq 3000`; echo 1 > /logs/a")
        await env.download_dir("/logs", tmp_path / "out")

    inside(environment(make_task(), scratch_root), body)
    assert (tmp_path / "out/a").read_text() == "1\n"
    assert 1000 < len(list((tmp_path / "out").rglob("*"))) < 2000


def test_clearing_gives_the_verifier_its_folders_whatever_the_agent_did(
    make_task, scratch_root: Path
) -> None:
    spoil = """
    mkdir -p /logs/verifier/reward.json/x /tests/test.sh; touch /tests/.hidden; rm -rf /app/*; ipcmk -M 1000000
    setsid bash -c 'while sleep 0.01; do echo 1 > /logs/verifier/reward.txt; done' & sleep 0.1
    chmod 000 /logs/verifier/reward.json /logs/verifier /logs /tests /tmp /app
    """

    async def body(env: LocalEnvironment) -> None:
        assert "Shared memory id" in (await env.exec(spoil)).stdout
        await env.clear_for_verifier(keep_processes=False)
        assert (
            await said(
                env, "ls -A /tests /logs/verifier; pgrep -c -r DRST sleep; ipcs -m | grep -c 1000000; true"
            )
            == "/logs/verifier:\n\n/tests:\n0\n0\n"
        )
        assert await said(env, "pwd; touch /app/a /tests/a /logs/verifier/a /tmp/a") == "/app\n"
        await env.exec("rm -rf /logs/verifier; ln -s /app /logs/verifier")
        await env.clear_for_verifier(keep_processes=False)
        assert await said(env, "test -d /logs/verifier && ! test -L /logs/verifier && echo good") == "good\n"

    inside(environment(make_task(), scratch_root), body)


def test_a_stopped_environment_can_be_stopped_and_cleared_again(make_task, scratch_root: Path) -> None:
    async def body(env: LocalEnvironment) -> None:
        await env.stop(delete=True)
        with pytest.raises(RecipeError):
            await env.exec("true")

    inside(environment(make_task(), scratch_root), body)
