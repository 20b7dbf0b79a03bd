"""Our job on Ray: submitted through the Jobs API, its log copied to the run folder, its end known or made."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from recipe.errors import RecipeError
from recipe.job import Job, RayAddress
from recipe.run.log_size import characters, cut_middle

# Ray's own words for "try again later"; its agent comes up within seconds of the dashboard, and where others keep
# the processors busy it took more than a minute.
NO_AGENT = "No available agent"
AGENT_SECONDS = 180.0
# Ray asks the job with SIGTERM and kills it three seconds later.
STOP_SECONDS = 15.0
# Taking a job needs a new process or two: seven seconds where others keep the processors busy.
ANSWER_SECONDS = 60.0
OWN_ERROR = re.compile(r"recipe\.plugins\.\w+\.(\w+Error: .*)")
# How long a log that broke off waits before it is asked for anew.
LOG_PAUSE_SECONDS = 2.0
# The copy of an ended job's log is a moment behind; without an end of its own it has lost its connection.
COPY_SECONDS = 10.0
# What a web socket that breaks off raises, and one that can't be had.
BROKEN = (RuntimeError, OSError, aiohttp.ClientError)
# They tell of every web socket that closes and of every package that is uploaded.
CHATTY = (
    JobSubmissionClient.__module__,
    "ray.dashboard.modules.dashboard_sdk",
    "ray._private.runtime_env.packaging",
)


class LeftJobError(RecipeError):
    """The job may go on: Ray does not answer, or has not ended it."""


class _BoundedClient(JobSubmissionClient):
    """Ray's client, which by itself would wait for an answer for ever, and would ask the user's proxy for one."""

    def _do_request(self, *arguments: Any, **options: Any) -> Any:
        return super()._do_request(*arguments, timeout=ANSWER_SECONDS, proxies={"no_proxy": "*"}, **options)


def _client(ray: RayAddress) -> JobSubmissionClient:
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    return _BoundedClient(ray.url, headers=ray.headers)


class RayJob:
    """One submitted job. `submit` or `find` it, ask `ended`, and `stop` it on every way out."""

    def __init__(
        self, client: JobSubmissionClient, job_id: str, log: Path, patience: float, written: int = 0
    ) -> None:
        """`written` characters of the job's log are in the file `log` already."""
        self._client = client
        self._id = job_id
        self._log = log
        self._patience = patience
        self._written = written
        self._log_is_whole = False
        # A character takes a byte or more: of a whole log there are never more than bytes in the file.
        self._log_is_cut = written > 0 and written > log.stat().st_size
        # A Ray of the run's own, for which there is no patience, is stopped with all its jobs.
        self._outlives_us = patience > 0
        self._left = False
        self._writing = threading.Lock()
        self._info: JobDetails = client.get_job_info(job_id)
        self._answered = time.monotonic()
        # A thread, since the log comes through a web socket while the launcher watches the servers.
        self._copier = threading.Thread(target=self._copy_log, name="job log", daemon=True)
        self._copier.start()

    @classmethod
    def submit(cls, ray: RayAddress, job: Job, log: Path, *, job_id: str | None = None) -> RayJob:
        """Submits `job` and follows its log into the file `log`.

        Raises RecipeError when Ray refuses it, LeftJobError when a Ray that outlives the run does not answer.
        """
        try:
            client = _client(ray)
            return cls(client, _submit(client, job, job_id), log, ray.patience)
        except (RuntimeError, OSError) as error:
            # Without an answer, the job may run all the same.
            kind = LeftJobError if ray.patience and isinstance(error, OSError) else RecipeError
            raise kind("Ray did not take the job", found=error, where=ray.url) from error

    @classmethod
    def find(cls, ray: RayAddress, job_id: str, log: Path) -> RayJob:
        """A job that was submitted before. Raises RecipeError when Ray does not know it."""
        try:
            # Characters as Ray sends them: the last one may be cut, and no line end is translated.
            written = characters(log.read_bytes()) if log.exists() else 0
            return cls(_client(ray), job_id, log, ray.patience, written)
        except (RuntimeError, OSError) as error:
            raise RecipeError(f"Ray does not know the job {job_id}", found=error, where=ray.url) from error

    @property
    def ended(self) -> bool:
        """Asks Ray. Raises RecipeError when it has not answered for longer than the patience."""
        if not self._info.status.is_terminal():
            try:
                self._info = self._client.get_job_info(self._id)
                self._answered = time.monotonic()
            except (RuntimeError, OSError) as error:
                if self.silence >= self._patience:
                    self._left = True
                    kind = LeftJobError if self._outlives_us else RecipeError
                    raise kind("Ray no longer answers for the job", found=error, where=self._id) from error
        return bool(self._info.status.is_terminal())

    @property
    def silence(self) -> float:
        """Seconds since Ray last answered for a job that goes on."""
        return time.monotonic() - self._answered

    @property
    def succeeded(self) -> bool:
        return bool(self._info.status == JobStatus.SUCCEEDED)

    def failure(self) -> RecipeError:
        """What an ended job that did not succeed is to be reported as."""
        log = self.save_log()
        # A job of Miles ends with the warnings of its workers: an error of our plugins says more.
        reasons = OWN_ERROR.findall(log)
        return RecipeError(
            f"the job ended as {self._info.status} (exit code {self._info.driver_exit_code})",
            found=reasons[-1] if reasons else "the end of its log:\n" + "\n".join(log.splitlines()[-20:]),
            where=self._log,
        )

    def save_log(self) -> str:
        """The log of an ended job, which it writes to the file: the copy that was followed may lag.

        One that is too long to be kept whole is not asked for again.
        """
        if self._log_is_cut:
            self._copier.join(timeout=COPY_SECONDS)
        elif not self._log_is_whole:
            with contextlib.suppress(RuntimeError, OSError):
                whole = self._client.get_job_logs(self._id)
                with self._writing:
                    if whole:  # a Ray that has lost the job's node answers with nothing
                        self._log.write_text(whole)
                        cut_middle(self._log)
                    self._log_is_whole = True
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stop(self) -> None:
        """Ends the job when it still runs; returns when Ray says that it is over. One that was lost is left alone.

        Raises LeftJobError when Ray can't be asked, or the job has not ended after STOP_SECONDS.
        """
        if self._left:
            return
        deadline = time.monotonic() + STOP_SECONDS
        self._patience = 0.0
        try:
            if not self.ended:
                self._client.stop_job(self._id)
            while not self.ended:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"it has not ended after {STOP_SECONDS:g} s")
                time.sleep(0.1)
            self.save_log()
        except (RuntimeError, OSError, RecipeError) as error:
            if self._outlives_us:
                raise LeftJobError("the job could not be stopped", found=error, where=self._id) from error

    def _copy_log(self) -> None:
        """Until the job has ended: a connection that breaks is made anew, and what is written stays written."""
        while not self._log_is_whole:
            # It also breaks when Ray ends: `save_log` has the whole log by then.
            with contextlib.suppress(*BROKEN):
                self._written = asyncio.run(self._copy_from(self._written))
            if self._info.status.is_terminal():
                return
            time.sleep(LOG_PAUSE_SECONDS)

    async def _copy_from(self, written: int) -> int:
        """Appends what comes after the first `written` characters; how many there are now."""
        seen = 0
        lines: AsyncIterator[str] = self._client.tail_job_logs(self._id)
        with self._log.open("a") as sink, contextlib.suppress(*BROKEN):
            async for text in lines:
                seen += len(text)
                with self._writing:
                    if self._log_is_whole:
                        break
                    sink.write(text[max(0, len(text) - max(0, seen - written)) :])
                    sink.flush()
                    self._log_is_cut |= cut_middle(self._log)
        return max(seen, written)


def running(ray: RayAddress) -> set[str]:
    """The ids of the submitted jobs that have not ended. Raises RecipeError when Ray does not tell."""
    try:
        jobs = _client(ray).list_jobs()
    except (RuntimeError, OSError) as error:
        raise RecipeError("Ray does not list its jobs", found=error, where=ray.url) from error
    return {job.submission_id for job in jobs if job.submission_id and not job.status.is_terminal()}


def _submit(client: JobSubmissionClient, job: Job, job_id: str | None = None) -> str:
    """The id of the submitted job. On a busy machine Ray lists jobs before its agent can take one."""
    runtime_env: dict[str, Any] = {"env_vars": job.env}
    if job.packages:
        runtime_env["py_modules"] = [str(folder) for folder in job.packages]
    deadline = time.monotonic() + AGENT_SECONDS
    while True:
        try:
            return client.submit_job(entrypoint=job.entrypoint, runtime_env=runtime_env, submission_id=job_id)
        except RuntimeError as error:
            if NO_AGENT not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)
