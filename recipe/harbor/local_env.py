"""Harbor's environment on this machine: one bubblewrap sandbox per trial, for tasks without network.

Import path `recipe.harbor.local_env:LocalEnvironment`. Files go in and out through `tar` inside the sandbox,
never by host paths: whatever links a policy plants, they lead nowhere but into its own sandbox.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, override

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from recipe.errors import RecipeError
from recipe.harbor.dockerfile import READ_ONLY, Build, Copy, Run, read_dockerfile
from recipe.harbor.sandbox import WRITABLE, CommandTimeoutError, Completed, Limits, Sandbox
from recipe.harbor.transfer import pack, pack_content, unpack, write

DEFAULT_WORKDIR = "/app"
TRANSFER_SECONDS = 120  # files of a task are small; this is for a machine that swaps
TRANSFER_BYTES = 16 << 20  # of one download, in memory; members are sorted, what comes later is left out
SPARE = 1 / 8  # of a disk's blocks and files: with less left, it is full for a verifier, 128 MB as a rule
ERROR_CHARACTERS = 500
ROOT_USERS = (None, "root", "0", 0)
# Python runs what lies in ~/.local before a program's first line: a policy's code, in the verifier. A task that
# installs packages there itself has its Dockerfile say `ENV PYTHONNOUSERSITE=`.
ENVIRONMENT = {"PYTHONNOUSERSITE": "1"}

# Nothing that a policy did to its sandbox may keep the verifier from running: a trial without a verdict counts as
# a failure of ours and is dropped, which would be a way around a bad reward. $1: working directory.
CLEAR = """
chmod u+rwx /logs /tests "$1"; chmod 1777 /tmp /var/tmp; chmod -R u+rwX /tests /logs/verifier
find /tests -mindepth 1 -delete; rm -rf /logs/verifier; ipcrm --all
mkdir -p -- "$1" && mkdir -m 777 /logs/verifier
"""


class LocalEnvironment(BaseEnvironment):
    """`scratch_root`: the folder that sandboxes' folders are made in; None: below the temporary folder.

    `disk_full`: whether the agent left the verifier no room, by its own doing.
    """

    def __init__(self, *args: Any, scratch_root: str | None = None, **kwargs: Any) -> None:
        self._scratch_root = None if scratch_root is None else Path(scratch_root)
        self._build = Build(Path())
        self._sandbox: Sandbox | None = None
        self.disk_full = False
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "local"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    @override
    def _validate_definition(self) -> None:
        """Raises ValueError for a task that the local sandbox can't run, DockerfileError for a line of its file."""
        dockerfile = self.environment_dir / "Dockerfile"
        if not self._network_disabled:
            raise ValueError(
                'the local sandbox has no network; the task must say network_mode = "no-network"'
            )
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise ValueError("the local sandbox can't run docker-compose.yaml")
        if self.task_env_config.docker_image and not dockerfile.exists():
            raise ValueError(f"the local sandbox can't run the image {self.task_env_config.docker_image}")
        if self._host_mounts:
            raise ValueError("the local sandbox mounts nothing of the host")
        if dockerfile.exists():
            self._build = read_dockerfile(dockerfile)
        workdir = PurePosixPath(self.workdir)
        if not workdir.is_absolute() or any(workdir.is_relative_to(system) for system in READ_ONLY):
            raise ValueError(f"the local sandbox can't write to the working directory {workdir}")

    @property
    def workdir(self) -> str:
        """Where commands run: the task's own word, else the Dockerfile's, else /app."""
        build = self._build.workdir
        return self.task_env_config.workdir or (build if build != "/" else DEFAULT_WORKDIR)

    @override
    async def start(self, force_build: bool) -> None:
        """Raises SandboxBuildFailedError: a TimeoutError would be reported as the build's own time limit."""
        folders = sorted({*self._build.folders, self.workdir, *self._mount_targets(writable_only=True)})
        self._sandbox = Sandbox(
            root=self._scratch_root,
            limits=Limits(
                memory_mb=self._effective_memory_mb or Limits.memory_mb,
                cpus=self._effective_cpus,
                disk_mb=self._effective_storage_mb or Limits.disk_mb,
            ),
            folders=_outermost(folders),
        )
        try:
            await self._sandbox.start()
            await self._shell('mkdir -p -- "$@"', *folders, what="making the folders")
            for step in self._build.steps:
                await self._follow(step)
        except (RecipeError, RuntimeError, OSError) as error:
            raise SandboxBuildFailedError(str(error)) from error

    async def _follow(self, step: Copy | Run) -> None:
        where = f"{self._build.path}, line {step.line}"
        if isinstance(step, Copy):
            await self._put(step.folder, pack(step.members, step.mode), what=where)
        else:
            # No time limit of ours: the task's build timeout holds.
            environment = ENVIRONMENT | step.environment
            await self._shell(
                step.command, what=where, folder=step.folder, environment=environment, seconds=None
            )

    @override
    async def stop(self, delete: bool) -> None:
        """The sandbox is gone when this returns, whatever `delete` says; further calls wait for the same end."""
        if self._sandbox is not None:
            await self._sandbox.stop()

    async def clear_for_verifier(self, *, keep_processes: bool) -> None:
        """Ends what the agent left running, unless told to keep it; gives the verifier its folders, empty."""
        if self._sandbox is not None:
            if not keep_processes:
                await self._sandbox.killall()
            measured = await self._shell("stat -f -c '%a %b %d %c' /app", what="measuring the disk")
            room, blocks, names, files = map(int, measured.stdout.split())
            self.disk_full = room < blocks * SPARE or names < files * SPARE
            await self._shell(CLEAR, self.workdir, what="clearing the verifier's folders")

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: float | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Raises RuntimeError after `timeout_sec`, as Harbor's docker environment does."""
        if self._resolve_user(user) not in ROOT_USERS:
            raise ValueError(f"the local sandbox has no user {self._resolve_user(user)!r}, only root")
        try:
            done = await self._running().run(
                ["/bin/bash", "-c", command],
                folder=cwd or self.workdir,
                environment={**ENVIRONMENT, **self._build.environment, **(self._merge_env(env) or {})},
                seconds=timeout_sec,
            )
        except CommandTimeoutError as error:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from error
        return ExecResult(
            stdout=done.stdout.decode(errors="replace"),
            stderr=done.stderr.decode(errors="replace"),
            return_code=done.code,
        )

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = PurePosixPath(target_path)
        await self._put(
            str(target.parent), pack({target.name: Path(source_path)}), what=f"upload of {target}"
        )

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._put(str(target_dir), pack_content(Path(source_dir)), what=f"upload of {target_dir}")

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Raises RuntimeError for a file that can't be read, or is larger than TRANSFER_BYTES."""
        done = await self._shell('exec cat -- "$1"', str(source_path), what=f"download of {source_path}")
        if done.cut:
            raise RuntimeError(f"{source_path} is larger than {TRANSFER_BYTES} bytes")
        write(done.stdout, Path(target_path))

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Takes what can be read: see `unpack`. Raises RuntimeError when there is no such folder."""
        script = 'cd -- "$1" && { tar --sort=name --hard-dereference --ignore-failed-read -cf - . || true; }'
        done = await self._shell(script, str(source_dir), what=f"download of {source_dir}")
        unpack(done.stdout, Path(target_dir))

    async def _put(self, folder: str, archive: bytes, *, what: str) -> None:
        script = 'mkdir -p -- "$1" && exec tar -xf - -C "$1" --no-same-owner'
        await self._shell(script, folder, what=what, stdin=archive)

    async def _shell(
        self,
        script: str,
        *arguments: str,
        what: str,
        folder: str = "/",
        environment: dict[str, str] | None = None,
        stdin: bytes = b"",
        seconds: float | None = TRANSFER_SECONDS,
    ) -> Completed:
        """Our own command, with `arguments` as $1, $2... Raises RuntimeError when it fails."""
        done = await self._running().run(
            ["/bin/sh", "-c", script, "sh", *arguments],
            folder=folder,
            environment=environment,
            stdin=stdin,
            seconds=seconds,
            output_bytes=TRANSFER_BYTES,
        )
        if done.code:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-ERROR_CHARACTERS:]
            raise RuntimeError(f"{what} failed in the sandbox with exit code {done.code}: {said}")
        return done

    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("the sandbox is not started")
        return self._sandbox


def _outermost(folders: list[str]) -> list[str]:
    """Of sorted absolute folders, those that are in no other and in none that a sandbox has anyway."""
    kept: list[str] = []
    for folder in folders:
        if not any(PurePosixPath(folder).is_relative_to(known) for known in (*WRITABLE, "/run", *kept)):
            kept.append(folder)
    return kept
