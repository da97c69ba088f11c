"""The manifests are valid by Kubernetes' own schemas, fit its restricted profile, and match each other."""

from __future__ import annotations

import re
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from poller.config.load import load
from poller.daemon.subscription_runner import END_WITHIN
from poller.store.feed import LAST_WAIT
from tests.deploy.files import DEPLOY, ROOT, documents, roles_of, with_admin

HERE: Final = DEPLOY / "kubernetes"
KUSTOMIZATION: Final[dict[str, Any]] = documents(HERE / "kustomization.yaml")[0]
TEXT: Final = (HERE / "kustomization.yaml").read_text("utf-8")
MANIFESTS: Final = {
    one["kind"]: one for path in HERE.glob("*.yaml") if path.name != "kustomization.yaml" for one in documents(path)
}
POD: Final[dict[str, Any]] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
LABELS: Final = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("kind", sorted(MANIFESTS))
def test_each_manifest(kind: str, version: str) -> None:
    """Each manifest is valid in an old and a new Kubernetes version, with no unknown key."""
    kubernetes_validate.validate(MANIFESTS[kind], version, strict=True)


def test_the_kustomization_names_every_file() -> None:
    """The kustomization lists every file, and generated names and images match their uses."""
    (generated,) = KUSTOMIZATION["configMapGenerator"]
    named = {"kustomization.yaml", *KUSTOMIZATION["resources"], *generated["files"]}
    assert named == {path.name for path in HERE.iterdir()}
    (configuration,) = (one["configMap"]["name"] for one in POD["volumes"] if "configMap" in one)
    assert configuration == generated["name"]
    assert [one["name"] for one in KUSTOMIZATION["images"]] == [CONTAINER["image"]]


def test_they_select_each_other() -> None:
    """Service, budget, policy and spread select the pods of the deployment."""
    selectors = (
        MANIFESTS["Deployment"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["Service"]["spec"]["selector"],
        MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        *(one["labelSelector"]["matchLabels"] for one in POD["topologySpreadConstraints"]),
    )
    assert all(selector == LABELS for selector in selectors)


def test_the_restricted_profile() -> None:
    """The pod meets the Pod Security Standard "restricted" and has a read-only root file system."""
    pod, own = POD["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & POD.keys()
    assert all(one.keys() & {"configMap", "secret", "emptyDir"} for one in POD["volumes"])
    assert POD["automountServiceAccountToken"] is False


def test_secrets_are_readable_by_the_group_alone() -> None:
    """Mounted secrets are readable only by the pod's group, because world-readable ones are refused."""
    (secret,) = (one["secret"] for one in POD["volumes"] if "secret" in one)
    assert secret["defaultMode"] == 0o440
    assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsGroup"]


def test_the_configuration() -> None:
    """The configuration is valid, its tokens are in the mounted secret, and ports and probes match its address."""
    (url,) = (one for one in CONTAINER["env"] if one["name"] == "REDIS_URL")
    assert url["valueFrom"]["secretKeyRef"]["key"] == "redis-url"
    environ = {one["name"]: one["value"] for one in CONTAINER["env"] if "value" in one}
    settings = load(HERE / "poller.toml", environ | {"REDIS_URL": "redis://poller:secret@redis:6379/0"})
    mounts = {one["name"]: one["mountPath"] for one in CONTAINER["volumeMounts"]}
    (items,) = (one["secret"]["items"] for one in POD["volumes"] if "secret" in one)
    tokens = {str(source.auth.token_file) for source in settings.sources if source.auth.token_file}
    tokens.add(str(settings.http.read_token_file))
    assert tokens == {f"{mounts['secrets']}/{item['path']}" for item in items}
    assert environ["POLLER_CONFIG"] == f"{mounts['configuration']}/poller.toml"
    (port,) = CONTAINER["ports"]
    assert settings.http.bind is not None
    assert settings.http.bind.port == port["containerPort"]
    assert {MANIFESTS["Service"]["spec"]["ports"][0]["targetPort"], CONTAINER["livenessProbe"]["httpGet"]["port"]} == {
        port["name"]
    }
    assert roles_of(CONTAINER["args"]) == {"poll", "deliver", "serve"}


def test_how_the_secret_is_made(tmp_path: Path) -> None:
    """The documented command makes each key of the secret that the pod uses, with a valid URL."""
    (making,) = re.findall(r"^#   (umask .*)$", TEXT, re.MULTILINE)
    (command,) = re.findall(r"^#   (kubectl create secret .*)$", TEXT, re.MULTILINE)
    assert "--from-literal" not in command
    (secret,) = (one["secret"] for one in POD["volumes"] if "secret" in one)
    (key,) = (one["valueFrom"]["secretKeyRef"]["key"] for one in CONTAINER["env"] if "valueFrom" in one)
    assert set(re.findall(r"--from-file=(\S+)", command)) == {key, *(item["key"] for item in secret["items"])}
    assert re.findall(r"^#   openssl rand -hex 32 > (\S+)$", TEXT, re.MULTILINE) == ["read"]
    subprocess.run(("bash", "-c", making), check=True, cwd=tmp_path, input="secret\n", text=True)
    settings = load(HERE / "poller.toml", {"REDIS_URL": (tmp_path / key).read_text("utf-8")})
    assert settings.redis.url == "redis://poller:secret@redis:6379/0"
    assert (tmp_path / key).stat().st_mode & 0o077 == 0


def test_an_admin_token(tmp_path: Path) -> None:
    """The commented lines for an admin token are valid, and its file is in the mounted secret."""
    file = tmp_path / "poller.toml"
    file.write_text(with_admin((HERE / "poller.toml").read_text("utf-8")), "utf-8")
    settings = load(file, {"REDIS_URL": "redis://poller:secret@redis:6379/0"})
    (deployment,) = yaml.safe_load_all(with_admin((HERE / "deployment.yaml").read_text("utf-8")))
    pod = deployment["spec"]["template"]["spec"]
    (items,) = (one["secret"]["items"] for one in pod["volumes"] if "secret" in one)
    (mount,) = (one["mountPath"] for one in CONTAINER["volumeMounts"] if one["name"] == "secrets")
    assert str(settings.http.admin_token_file) in {f"{mount}/{item['path']}" for item in items}


def test_whom_it_may_reach() -> None:
    """The policy permits DNS, Redis with or without TLS, and the Internet except private networks."""
    names, redis, world = MANIFESTS["NetworkPolicy"]["spec"]["egress"]
    assert "to" not in names
    assert {(one["port"], one["protocol"]) for one in names["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert {one["port"] for one in redis["ports"]} == {6379, 6380}
    blocks = [one["ipBlock"] for one in world["to"]]
    assert {one["cidr"] for one in blocks} == {"0.0.0.0/0", "::/0"}
    refused = [ip_network(network) for one in blocks for network in one["except"]]
    for address in map(ip_address, ("10.1.2.3", "172.31.0.1", "192.168.0.1", "169.254.169.254", "fd00::1", "fe80::1")):
        assert any(address in network for network in refused)


def test_probes_and_the_end() -> None:
    """The probes use the health endpoints, and an orderly stop fits into the termination grace period."""
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert POD["terminationGracePeriodSeconds"] > END_WITHIN + LAST_WAIT


def test_the_image_is_this_version() -> None:
    """Every image tag is the project's version, and the pod's user is the image's user."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    (version,) = re.findall(r'^version = "(.*)"$', text, re.MULTILINE)
    assert KUSTOMIZATION["images"][0]["newTag"] == version
    for file in (DEPLOY / "README.md", DEPLOY / "Dockerfile", HERE / "kustomization.yaml"):
        assert re.findall(r"docker build .* -t (\S+) \.", file.read_text("utf-8")) == [f"poller:{version}"]
    assert set(re.findall(r"load \S*\s?(poller\S*[^,).\s])", TEXT)) == {f"poller:{version}"}
    compose = documents(DEPLOY / "compose.yaml")[0]["services"]
    assert {one["image"] for one in compose.values() if "build" in one} == {f"poller:{version}"}
    user = re.findall(r"^USER (\d+):(\d+)$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.MULTILINE)[-1]
    assert (POD["securityContext"]["runAsUser"], POD["securityContext"]["runAsGroup"]) == tuple(map(int, user))
