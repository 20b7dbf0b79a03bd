"""What the network policies of the sandboxes allow, worked out as Kubernetes does: the union of what each allows."""

from __future__ import annotations

import copy
import ipaddress
import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from recipe.gke.operations import POLICIES

SCHEMA = json.loads(Path(__file__).with_name("networkpolicy.schema.json").read_text())
SANDBOX = {"app": "sandbox"}
NO_NETWORK = {"harbor-network-mode": "no-network"}
PODS = {
    "sandbox": SANDBOX,
    "docker": SANDBOX | {"mode": "dind"},
    "offline": SANDBOX | NO_NETWORK,
    "offline docker": SANDBOX | {"mode": "dind"} | NO_NETWORK,
    "other": {"app": "something"},
}
DNS = [("kube-system", "UDP", 53), ("kube-system", "TCP", 53)]
WEB = [("93.184.216.34", "TCP", 80), ("93.184.216.34", "TCP", 443)]
METADATA = [("169.254.169.254", "TCP", 80), ("169.254.169.252", "TCP", 988)]
# One address at each end of every range that isn't public, and of the usual ones of a cluster.
PRIVATE = ["10.0.0.1", "10.255.255.254", "100.64.0.1", "100.127.255.254", "172.16.0.1", "172.31.255.254"]
PRIVATE += [
    "192.168.0.1",
    "192.168.255.254",
    "198.18.0.1",
    "198.19.255.254",
    "169.254.169.254",
    "169.254.20.10",
]
PRIVATE += [
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.51.100.1",
    "203.0.113.1",
    "240.0.0.1",
    "10.4.0.9",
    "10.8.0.1",
]
OTHERS = [
    ("93.184.216.34", "TCP", 22),
    ("93.184.216.34", "UDP", 443),
    ("8.8.8.8", "UDP", 53),
    ("default", "UDP", 53),
]
OTHERS += [("kube-system", "TCP", 443), ("2001:db8::1", "TCP", 443), ("169.254.169.254", "TCP", 988)]
ALL = [*DNS, *WEB, *METADATA, *OTHERS, *((address, "TCP", port) for address in PRIVATE for port in (80, 443))]


def policies() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(POLICIES.read_text()))


def chooses(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    fits = [
        (labels.get(one["key"]) in one["values"]) == (one["operator"] == "In")
        for one in selector.get("matchExpressions", [])
    ]
    return equal and all(fits)


def reaches(peer: dict[str, Any], target: str) -> bool:
    """`target` is an address or the name of a namespace."""
    if "namespaceSelector" in peer:
        return chooses(peer["namespaceSelector"], {"kubernetes.io/metadata.name": target})
    try:
        address = ipaddress.ip_address(target)
    except ValueError:
        return False
    block = peer["ipBlock"]
    inside = [address in ipaddress.ip_network(text) for text in (block["cidr"], *block.get("except", []))]
    return inside[0] and not any(inside[1:])


def allowed(all_policies: list[dict[str, Any]], labels: dict[str, str]) -> set[tuple[str, str, int]]:
    """Which of ALL a pod with these labels reaches."""
    specs = [one["spec"] for one in all_policies if chooses(one["spec"]["podSelector"], labels)]
    rules = [rule for spec in specs for rule in spec.get("egress", [])]
    free = not any("Egress" in spec["policyTypes"] for spec in specs)

    def passes(target: str, protocol: str, port: int) -> bool:
        by = [rule for rule in rules if {"protocol": protocol, "port": port} in rule["ports"]]
        return free or any(reaches(peer, target) for rule in by for peer in rule["to"])

    return {flow for flow in ALL if passes(*flow)}


@pytest.mark.parametrize(
    ("pod", "flows"),
    [
        ("sandbox", DNS + WEB),
        ("docker", DNS + WEB + METADATA),
        ("offline", []),
        ("offline docker", []),
        ("other", DNS),
    ],
)
def test_a_pod_reaches_this_and_nothing_else(pod, flows) -> None:
    assert allowed(policies(), PODS[pod]) == set(flows)


@pytest.mark.parametrize("pod", PODS)
def test_nothing_comes_in(pod) -> None:
    specs = [one["spec"] for one in policies() if chooses(one["spec"]["podSelector"], PODS[pod])]
    assert any("Ingress" in spec["policyTypes"] for spec in specs)
    assert not any(spec.get("ingress") for spec in specs)


@pytest.mark.parametrize("pod", PODS)
def test_without_the_policies_of_the_web_no_pod_reaches_it(pod) -> None:
    left = [
        one for one in policies() if one["metadata"].get("labels", {}).get("inkling-grpo/egress") != "web"
    ]
    assert [one["metadata"]["name"] for one in policies() if one not in left] == ["allow-web"]
    assert not set(WEB) & allowed(left, PODS[pod])


def test_each_policy_fits_the_schema() -> None:
    for policy in policies():
        jsonschema.validate(policy, SCHEMA)


@pytest.mark.parametrize(
    "path",
    [("metadata", "name"), ("spec", "podSelector"), ("spec", "policyTypes"), ("spec", "egress", 0, "ports")],
)
def test_the_schema_refuses_a_policy_that_lacks_or_misspells_a_key(path) -> None:
    policy = copy.deepcopy(policies()[1])
    parent: Any = policy
    for key in path[:-1]:
        parent = parent[key]
    parent["misspelt"] = parent.pop(path[-1])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(policy, SCHEMA)


KIND = {
    "name": "networkpolicies",
    "singularName": "networkpolicy",
    "namespaced": True,
    "kind": "NetworkPolicy",
}
VERSION = {"groupVersion": "networking.k8s.io/v1", "version": "v1"}
ANSWERS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis": {
        "kind": "APIGroupList",
        "groups": [{"name": "networking.k8s.io", "versions": [VERSION], "preferredVersion": VERSION}],
    },
    "/apis/networking.k8s.io/v1": {
        "kind": "APIResourceList",
        "groupVersion": "networking.k8s.io/v1",
        "resources": [KIND | {"verbs": ["get", "create", "patch"]}],
    },
}


class Discovery(BaseHTTPRequestHandler):
    """As much of a Kubernetes server as kubectl asks before a dry run: which kinds there are; nothing is there."""

    def do_GET(self) -> None:
        found = ANSWERS.get(self.path.partition("?")[0])
        missing = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "NotFound",
            "code": 404,
        }
        body = json.dumps(found or missing).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def discovery():
    with ThreadingHTTPServer(("127.0.0.1", 0), Discovery) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"--server=http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ([], ["deny-all", "allow-dns", "allow-web", "allow-metadata-server"]),
        (["--selector=inkling-grpo/egress!=web"], ["deny-all", "allow-dns", "allow-metadata-server"]),
    ],
    ids=["all", "no web"],
)
def test_kubectl_reads_the_policies(tmp_path, discovery, selector, expected) -> None:
    flags = ["--dry-run=client", "--validate=false", f"--filename={POLICIES}", "--output=name", *selector]
    tmp_path.joinpath("none").touch()
    command = [
        "kubectl",
        discovery,
        f"--cache-dir={tmp_path}",
        f"--kubeconfig={tmp_path / 'none'}",
        "apply",
        *flags,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    names = [line.rpartition("/")[2] for line in done.stdout.splitlines()]
    assert names == expected
