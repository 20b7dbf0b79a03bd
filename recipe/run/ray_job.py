"""Our job on Ray: submitted through the Jobs API, its log copied to the run folder, its end known or made."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from recipe.errors import RecipeError
from recipe.job import Job

# Ray's own words for "try again later"; its agent comes up within seconds of the dashboard.
NO_AGENT = "No available agent"
AGENT_SECONDS = 60.0
# Ray asks the job with SIGTERM and kills it three seconds later.
STOP_SECONDS = 15.0
# Taking a job needs a new process or two: seven seconds where others keep the processors busy.
ANSWER_SECONDS = 60.0


class _BoundedClient(JobSubmissionClient):
    """Ray's client, which by itself would wait for an answer for ever."""

    def _do_request(self, *arguments: Any, **options: Any) -> Any:
        return super()._do_request(*arguments, timeout=ANSWER_SECONDS, **options)


class RayJob:
    """One submitted job. `submit` it, ask `ended`, and `stop` it on every way out."""

    def __init__(self, client: JobSubmissionClient, job_id: str, log: Path) -> None:
        self._client = client
        self._id = job_id
        self._log = log
        self._log_is_whole = False
        self._writing = threading.Lock()
        self._info: JobDetails = client.get_job_info(job_id)
        # A thread, since the log comes through a web socket while the launcher watches the servers.
        threading.Thread(target=self._copy_log, name="job log", daemon=True).start()

    @classmethod
    def submit(cls, jobs_url: str, headers: dict[str, str], job: Job, log: Path) -> RayJob:
        """Submits `job` and follows its log into the file `log`. Raises RecipeError when Ray refuses it."""
        # It would tell of every web socket that closes.
        logging.getLogger(JobSubmissionClient.__module__).setLevel(logging.WARNING)
        try:
            client = _BoundedClient(jobs_url, headers=headers)
            return cls(client, _submit(client, job), log)
        except (RuntimeError, OSError) as error:
            raise RecipeError("Ray did not take the job", found=error, where=jobs_url) from error

    @property
    def ended(self) -> bool:
        """Asks Ray. Raises RecipeError when it does not answer."""
        if not self._info.status.is_terminal():
            try:
                self._info = self._client.get_job_info(self._id)
            except (RuntimeError, OSError) as error:
                raise RecipeError("Ray no longer answers for the job", found=error, where=self._id) from error
        return bool(self._info.status.is_terminal())

    @property
    def succeeded(self) -> bool:
        return bool(self._info.status == JobStatus.SUCCEEDED)

    def failure(self) -> RecipeError:
        """What an ended job that did not succeed is to be reported as."""
        return RecipeError(
            f"the job ended as {self._info.status} (exit code {self._info.driver_exit_code})",
            found="the end of its log:\n" + "\n".join(self.save_log().splitlines()[-20:]),
            where=self._log,
        )

    def save_log(self) -> str:
        """The whole log, which it writes to the file: the copy that was followed may lag by some seconds."""
        with contextlib.suppress(RuntimeError, OSError):
            whole = self._client.get_job_logs(self._id)
            with self._writing:
                self._log_is_whole = True
                self._log.write_text(whole)
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stop(self) -> None:
        """Ends the job when it still runs; returns when Ray says that it is over, or after STOP_SECONDS."""
        deadline = time.monotonic() + STOP_SECONDS
        # Ray may be what failed: its own stop, which comes next, ends the job in any case.
        with contextlib.suppress(RuntimeError, OSError, RecipeError):
            if not self.ended:
                self._client.stop_job(self._id)
            while not self.ended and time.monotonic() < deadline:
                time.sleep(0.1)
            self.save_log()

    def _copy_log(self) -> None:
        async def copy() -> None:
            with self._log.open("w") as sink:
                async for lines in self._client.tail_job_logs(self._id):
                    with self._writing:
                        if self._log_is_whole:
                            return
                        sink.write(lines)
                        sink.flush()

        # The connection breaks when Ray ends: `save_log` has the whole log by then.
        with contextlib.suppress(RuntimeError, OSError):
            asyncio.run(copy())


def _submit(client: JobSubmissionClient, job: Job) -> str:
    """The id of the submitted job. On a busy machine Ray lists jobs before its agent can take one."""
    deadline = time.monotonic() + AGENT_SECONDS
    while True:
        try:
            return client.submit_job(entrypoint=job.entrypoint, runtime_env={"env_vars": job.env})
        except RuntimeError as error:
            if NO_AGENT not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)
