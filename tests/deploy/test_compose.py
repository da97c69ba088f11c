"""The compose file is valid, its services are confined, and what it refers to exists and works."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from compose_spec import PyCompose
from redis import Redis

from poller.config.load import load
from tests.acl import PASSWORD
from tests.deploy.files import DEPLOY, documents, roles_of, with_admin
from tests.harness.waiting import strain
from tests.servers import binary, free_port, launched

FILE: Final = DEPLOY / "compose.yaml"
COMPOSE: Final[dict[str, Any]] = documents(FILE)[0]
SERVICES: Final[dict[str, Any]] = COMPOSE["services"]
POLLERS: Final = ("poller", "deliverer")


def test_the_specification() -> None:
    """The compose file is valid by the compose specification, with YAML merges resolved."""
    assert set(PyCompose.from_yaml(yaml.safe_dump(COMPOSE)).service_names()) == set(SERVICES)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_service_is_confined(name: str) -> None:
    """Every service runs with minimal rights, publishes on loopback only, and has a health check and a version."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "healthcheck" in service or name in POLLERS  # whose image has one
    assert "build" in service or re.search(r":v?\d+\.\d+", service["image"])  # never the latest


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_it_refers_to(name: str) -> None:
    """Networks, volumes, configurations and secrets are declared, and the project's files exist."""
    service = SERVICES[name]
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
    assert {one["source"] for one in service.get("configs", ())} <= set(COMPOSE["configs"])
    for source in (one.split(":")[0] for one in service.get("volumes", ())):
        assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    for one in COMPOSE["configs"].values():
        assert (DEPLOY / one["file"]).is_file()
    if build := service.get("build"):
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


def test_the_pollers() -> None:
    """Together the poller services have all roles, with a valid configuration and the password in the environment."""
    assert frozenset().union(*(roles_of(SERVICES[name]["command"]) for name in POLLERS)) == {"poll", "deliver", "serve"}
    for name in POLLERS:
        url = re.sub(r"\$\{REDIS_PASSWORD:\?[^}]*\}", "secret", SERVICES[name]["environment"]["REDIS_URL"])
        settings = load(DEPLOY / COMPOSE["configs"]["poller"]["file"], {"REDIS_URL": url})
        tokens = {str(source.auth.token_file) for source in settings.sources if source.auth.token_file}
        tokens.add(SERVICES[name]["environment"]["POLLER_READ_TOKEN_FILE"])
        assert tokens == {f"/run/secrets/{secret}" for secret in SERVICES[name]["secrets"]}
        assert settings.redis.durability == "require"


def test_an_admin_token(tmp_path: Path) -> None:
    """The commented lines for an admin token are valid, and its file is a declared secret."""
    file = tmp_path / "compose.toml"
    file.write_text(with_admin((DEPLOY / "compose.toml").read_text("utf-8")), "utf-8")
    settings = load(file, {"REDIS_URL": "redis://poller:secret@redis:6379/0"})
    compose = yaml.safe_load(with_admin(FILE.read_text("utf-8")))
    assert str(settings.http.admin_token_file) in {f"/run/secrets/{name}" for name in compose["secrets"]}
    assert set(compose["secrets"]) == {"acme", "read", "admin"}


def test_no_secret_is_in_the_repository() -> None:
    """Git ignores the files that hold secrets."""
    if subprocess.run(("git", "rev-parse"), check=False, cwd=DEPLOY, capture_output=True).returncode:
        pytest.skip("not a git checkout")
    for name in (".env", *(one["file"] for one in COMPOSE["secrets"].values())):
        assert subprocess.run(("git", "check-ignore", "-q", name), check=False, cwd=DEPLOY).returncode == 0


def test_the_redis(tmp_path: Path) -> None:
    """The server, started as the service starts it, takes its password from the environment and requires it."""
    port, etc, run = free_port(), tmp_path / "etc", tmp_path / "run"
    service = SERVICES["redis"]
    assert service["entrypoint"] == ["/bin/sh", "/etc/redis/start.sh"]
    assert "./redis:/etc/redis:ro" in service["volumes"]
    shutil.copytree(DEPLOY / "redis", etc)
    run.mkdir()
    start = (etc / "start.sh").read_text("utf-8")
    for place, here in (("/etc/redis", etc), ("/run/redis", run), ("/data", tmp_path)):
        start = start.replace(place, str(here))
    (etc / "start.sh").write_text(start, "utf-8")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "redis-server").symlink_to(binary("valkey"))
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "REDIS_PASSWORD": PASSWORD}
    script = ("/bin/sh", str(etc / "start.sh"), "--port", str(port), "--bind", "127.0.0.1")
    without = {"PATH": environ["PATH"]}
    assert subprocess.run(script, check=False, env=without, capture_output=True, timeout=20 * strain()).returncode != 0
    process = launched(("/usr/bin/env", *(f"{name}={value}" for name, value in environ.items()), *script))
    try:
        with Redis(port=port, username="poller", password=PASSWORD) as client:
            assert client.ping()
        assert hashlib.sha256(PASSWORD.encode()).hexdigest() in (run / "users.acl").read_text("utf-8")
        assert (run / "users.acl").stat().st_mode & 0o077 == 0
        done = health(service["healthcheck"]["test"], port)
        assert done is None or (done.returncode, done.stdout) == (0, "PONG\n")
    finally:
        process.kill()
        process.wait()


def health(test: list[str], port: int) -> subprocess.CompletedProcess[str] | None:
    """The service's health check, run here; None without redis-cli."""
    kind, line = test
    assert kind == "CMD-SHELL"
    if shutil.which("redis-cli") is None:
        return None
    line = line.replace("$$", "$").replace("redis-cli", f"redis-cli -p {port}")
    environ = {"PATH": os.environ["PATH"], "REDIS_PASSWORD": PASSWORD}
    return subprocess.run(("/bin/sh", "-c", line), check=False, env=environ, capture_output=True, text=True)
