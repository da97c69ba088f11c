"""Hadolint accepts the Dockerfile, and the image it describes would hold a working program.

There is no container engine in the tests, so the pip command of the build is run outside of one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
from dockerfile_parse import DockerfileParser

from tests.deploy.files import DEPLOY, ROOT, roles_of

FILE: Final = DEPLOY / "Dockerfile"
_INSTALL: Final = "/opt/poller/bin/python -m pip install "


def instructions() -> list[list[tuple[str, str]]]:
    """The instructions with their values, stage by stage."""
    with FILE.open("rb") as file:
        lines: list[dict[str, Any]] = DockerfileParser(fileobj=file).structure
    stages: list[list[tuple[str, str]]] = []
    for line in lines:
        if line["instruction"] == "FROM":
            stages.append([])
        if stages and line["instruction"] != "COMMENT":
            stages[-1].append((line["instruction"], line["value"]))
    return stages


def last(instruction: str) -> str:
    """The value of the last instruction of this name in the final image."""
    return [value for name, value in instructions()[-1] if name == instruction][-1]


def test_hadolint_finds_nothing() -> None:
    """The Dockerfile passes hadolint."""
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed; its wheel is for x86-64 Linux alone")
    done = subprocess.run((program, str(FILE)), check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_who_runs_what() -> None:
    """The image runs the daemon without a shell, as a numeric user other than root."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER"))
    assert json.loads(last("ENTRYPOINT")) == ["poller"]
    assert roles_of(json.loads(last("CMD"))) == {"poll", "deliver", "serve"}
    assert json.loads(last("HEALTHCHECK").partition("CMD ")[2])[0] == "python"


def test_what_is_written_is_in_a_volume() -> None:
    """The data directory is the volume, so that everything else may be read-only."""
    assert f"POLLER_DATA_DIR={last('VOLUME')}" in last("ENV")
    assert last("WORKDIR") == last("VOLUME")


def test_the_build(tmp_path: Path) -> None:
    """The copied files suffice for the image's pip command, and the installed program runs."""
    if find_spec("pip") is None:
        pytest.skip("this environment has no pip")
    context, target = tmp_path / "build", tmp_path / "installed"
    context.mkdir()
    taken = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for value in (value for name, value in instructions()[0] if name == "COPY"):
        for source in value.split()[:-1]:
            assert f"!{source}" in taken  # everything else stays out of the context
            if (ROOT / source).is_dir():  # other tests write bytecode there
                shutil.copytree(ROOT / source, context / source, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, context / source)
    (run,) = (value for name, value in instructions()[0] if name == "RUN")
    (install,) = (part.strip() for part in run.split("&&") if _INSTALL in part)
    words = shlex.split(install.removeprefix(_INSTALL))
    command = (sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(target), *words)
    done = subprocess.run(command, check=False, cwd=context, capture_output=True, text=True)
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    program = (sys.executable, str(target / "bin" / "poller"), "--version")
    shown = subprocess.run(
        program, check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(target)}, capture_output=True, text=True
    )
    assert shown.stdout.startswith("poller "), shown.stderr
    assert list(target.rglob("py.typed"))
