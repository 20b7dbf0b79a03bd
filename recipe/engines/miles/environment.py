"""Every variable of the job's environment, for all its processes on all nodes. None is a secret.

Ray keeps a job's environment in the job's record and shows it on its dashboard: the key of Weights & Biases
travels in a file instead, which NETRC names.
"""

from __future__ import annotations

from pathlib import Path

from recipe.job import journal, plugin_environment, tracking_environment
from recipe.settings import Settings

# Read by the reference recipe's runs (camel-ai/seta at 62ba0a9).
FIXED = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron asks for it with tensor parallelism
    "MILES_EXPERIMENTAL_ROLLOUT_REFACTOR": "1",  # else Miles knows neither --max-seq-len nor our agent function
    "MILES_SGLANG_DUMMY_LOAD": "0",
    "NCCL_MNNVL_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    "PYTHONUNBUFFERED": "1",  # a line of the log is there when it is printed
    "RAY_DEDUP_LOGS": "0",  # by default Ray folds repeated lines of several workers
    "RAY_memory_monitor_refresh_ms": "0",  # Ray's monitor would kill the offloaded weights
    "SGLANG_ENABLE_UNIFIED_RADIX_TREE": "1",
    "SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV_NORM": "false",
    "SGLANG_SERVER_ENGINE_ROLLOUT_RETURN_LOGPROB": "1",
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",  # the image's kernels are kept as they are
    "SPT_NOENV": "1",  # else the servers' titles overwrite their environment, by which leftovers are told apart
}
# By it the leftovers of a run of ours are told from other people's processes.
RUN_MARK = "INKLING_GRPO_RUN"


def environment(settings: Settings, agent_server_url: str, run_dir: Path) -> dict[str, str]:
    """The variables by name; the plugins' are read in recipe/plugins."""
    return {
        **FIXED,
        RUN_MARK: settings.run_name,
        "MASTER_ADDR": str(settings.head_ip),
        "no_proxy": f"127.0.0.1,{settings.head_ip}",
        "PYTHONPATH": f"{settings.megatron_path}:{settings.miles_dir}",
        "TORCHINDUCTOR_CACHE_DIR": str(settings.torchinductor_cache_dir),
        **{
            name.upper(): value
            for name in ("nccl_socket_ifname", "gloo_socket_ifname")
            if (value := getattr(settings, name))
        },
        **tracking_environment(settings, run_dir),
        **plugin_environment(settings, agent_server_url, journal(run_dir)),
    }
