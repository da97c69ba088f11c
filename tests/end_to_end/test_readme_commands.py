"""Each command in the documents does what it is for and exits as it should.

The commands are taken from all documents: each shell block is a script, and each command within a line of text is run
alone. :class:`Stage` replaces their addresses, names and ids by those of this machine.

A new command is run as soon as it is in a document; one that cannot be run is listed below with the test that covers
it.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Final

import pytest

from tests.cli.commands import Program
from tests.documents import block, table, text
from tests.harness.processes import daemon
from tests.harness.scene import Scene, scene
from tests.harness.waiting import patience, until
from tests.programs import bare_environ, for_the_block
from tests.receiver import Receiver, Reply, receiving
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT: Final = Path(__file__).parents[2]
SINK: Final = "https://rostering.example.org/hooks"
FEED: Final = "acme/contractTypes"
ENTRY: Final = re.compile(r"acme/contractTypes:(?:rostering:)?1735689600000-0")

COMMAND: Final = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:poller|python|pip|npm|honcho|curl|promtool|docker|kubectl|systemctl) "
)
ENDLESS: Final = (
    "poller run",
    "poller tail",
    "poller sandbox",
    "poller receive",
    "poller demo",
    "poller status --watch",
)
"""Commands that run until they are interrupted: the test interrupts them after their first line."""

ELSEWHERE: Final = {
    # Which test runs the command instead, or why none does.
    ".venv/bin/poller demo": "tests/test_newcomer.py",
    "poller status -c trial/poller.toml": "tests/test_newcomer.py",
    "poller records erase": "tests/end_to_end/test_erasure.py, with --yes",
    "poller check -c trial/poller.toml": "tests/test_newcomer.py",
    "poller receive --secret-file FILE": "tests/cli/test_receive.py",
    "poller resync FEED --anew": "it asks first; tests/cli/test_feeds.py",
    "poller keys new --output": "it writes a file; tests/cli/test_tools.py",
    "poller feeds forget": "tests/end_to_end/test_orphans.py has a feed that may be forgotten",
    "python -m tests.document_tables": "it writes into documents; test_documents.py compares what it would write",
    "python -m tests.house": "tests/test_house.py",
    "python -m tests.simulation": "tests/simulation/test_simulation.py",
    "python -m tests.source.lagging": "tests/source/test_lagging.py",
    "python -m tests.newcomer": "fetches packages; tests/test_newcomer.py does the same without that",
    "python3 -m venv": "the continuous integration runs it word for word",
    "pip install": "it comes with the tests' extra",
    "npm install": "the continuous integration",
    "poller --install-completion": "writes into the user's home; tests/cli/test_options.py prints it",
    "python -m tests.bench": "takes minutes and needs a quiet machine; tests/bench has its own tests",
    "python -m tests.chaos": "tests/chaos runs each fault once",
    "python -m tests.end_to_end.terminations": "takes minutes; test_stopping.py runs its scene",
    "POLLER_FAILPOINT=": "test_failpoints.py, at each failpoint",
    "honcho start": "tests/deploy/test_procfile.py",
    "systemctl": "there is no systemd in a container; tests/deploy/test_systemd.py checks the unit",
    "docker build": "there is no engine; tests/deploy/test_dockerfile.py runs the Dockerfile's commands",
    "kubectl apply": "there is no cluster; tests/deploy/test_kubernetes.py checks the manifests",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """The local replacements of the README's names.

    Attributes:
        played: the source and the store.
        sink: the receiver of webhooks.
        config: the README's configuration, with the addresses of these.
        address: where the daemon serves HTTP.
    """

    played: Scene
    sink: Receiver
    config: Path
    address: str

    async def run(self, script: str, *, answer: str = "y\n") -> str:
        """The output of a script; fails if the script or one of its commands fails."""
        async with self._started(script) as process, patience(script):
            out, _ = await process.communicate(answer.encode())
        assert process.returncode == 0, f"{script}\n{out.decode()}"
        return out.decode()

    async def begun(self, command: str) -> None:
        """Start an endless command, interrupt it after its first line, and check that it exits with 0."""
        anywhere = re.sub(r"\bpoller (sandbox|receive)\b", r"poller \1 --port 0", command)  # the default may be in use
        async with self._started(f"exec env {anywhere}") as process, patience(command):
            assert process.stdout is not None
            assert await process.stdout.readline()
            process.send_signal(signal.SIGINT)
            await process.communicate()
        assert process.returncode == 0, command

    @asynccontextmanager
    async def _started(self, script: str) -> AsyncIterator[asyncio.subprocess.Process]:
        here = bare_environ()
        path = f"{Path(sys.executable).parent}:{here['PATH']}"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", script),
            cwd=self.config.parent,
            env=here | {"PATH": path, "POLLER_CONFIG": str(self.config), "PYTHONPATH": str(ROOT)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with for_the_block(process):
            yield process

    async def letters(self) -> list[str]:
        """The ids of the dead letters."""
        listed = await self.run("poller dead-letters list --json")
        return [json.loads(line)["id"] for line in listed.splitlines()]

    async def hold(self) -> None:
        """Run a round that finds none of the feed's records, so that removals are held."""
        await self.played.call("blank?on=1")
        await self.run(f"poller resync {FEED} || true")  # exits with 1, because the round fails
        await until(self._held, "a held round")
        await self.played.call("blank?on=0")

    async def _held(self) -> bool:
        lines = map(json.loads, (await self.run("poller status --json")).splitlines())
        return any(line.get("feed") == FEED and line["state"] == "held" for line in lines)

    async def letter(self) -> str:
        """Quarantine a record, and return its id."""
        deep = "[" * 101 + "]" * 101
        await self.played.put("contractTypes", {"id": "deep", "name": json.loads(deep)})
        return (await until(self.letters, "a record that cannot be used"))[0]

    async def dead_event(self) -> str:
        """Recreate the subscription with an event whose schedule is used up; its id."""
        await self.run("poller subscriptions remove rostering --yes || true")
        self.sink.answer = Reply(500)
        own = {"id": "rostering", "sink": self.sink.url, "retry": {"schedule": ["1ms"]}, "allow_hosts": ["127.0.0.1"]}
        await self.run(f"echo '{json.dumps(own)}' | poller subscriptions add --from-json -")
        await self.played.put("contractTypes", {"id": "dead", "name": "a name"})
        await until(self.letters, "an event that is given up on")
        self.sink.answer = Reply()
        return (await self.letters())[0]


@asynccontextmanager
async def staged(directory: Path, *, changes_per_second: float = 0) -> AsyncIterator[Stage]:
    """The README's configuration, played by the sandbox, a store, a daemon and a receiver."""
    async with scene(directory, records=40, changes_per_second=changes_per_second) as played, receiving() as sink:
        played.config()  # leaves the token
        told = block("poller.toml").replace("redis://127.0.0.1:6379/0", played.store)
        told = told.replace('name = "acme"\n', 'name = "acme"\ntype_prefix = "org.example.api"\n', 1)  # as for that URL
        told = told.replace("https://api.example.org/v1", played.source)
        assert "type_prefix" in told
        told = told.replace("/run/secrets/acme", str(directory / "token"))
        told = told.replace("[redis]", f'http = {{ admin_token_file = "{directory / "token"}" }}\n[redis]', 1)
        told = told.replace('"contractTypes"\n', '"contractTypes"\ninterval = "500ms"\n')
        config = directory / "poller.toml"
        config.write_text(told, "utf-8")
        address = f"127.0.0.1:{free_port()}"
        async with daemon(config, environ={"POLLER_HTTP_BIND": address}) as running:
            await running.polled(["contractTypes", "evidenceVariants", "achievements"])
            yield Stage(played, sink, config, address)


def scripts() -> list[str]:
    """The shell blocks in order."""
    return re.findall(r"^```sh\n(.*?)^```$", text(), re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """The commands within lines of text, each once. Those of the table of timings are also in a block."""
    prose = re.sub(r"^```.*?^```$", "", text().replace(table("newcomer"), ""), flags=re.DOTALL | re.MULTILINE)
    spans = (" ".join(one.split()).replace(".venv/bin/", "") for one in re.findall(r"`([^`]+)`", prose))
    return [one for one in dict.fromkeys(spans) if COMMAND.match(one)]


def run_elsewhere(command: str) -> bool:
    return command.startswith(tuple(ELSEWHERE)) or ("curl " in command and which("curl") is None)


@pytest.mark.thorough
async def test_the_scripts(tmp_path: Path) -> None:
    """Each shell block runs line by line without an error."""
    async with staged(tmp_path) as stage:
        for script in scripts():
            if not run_elsewhere(script):
                await play(await here(script, stage), stage)


async def play(script: str, stage: Stage) -> None:
    """Run the lines that end as one script, and each endless command alone."""
    endless = [line for line in script.splitlines() if re.match(rf"(?:[A-Z_]+=\S+ )*(?:{'|'.join(ENDLESS)})\b", line)]
    await stage.run("".join(line for line in script.splitlines(keepends=True) if line.rstrip() not in endless))
    for line in endless:
        await stage.begun(line.partition("#")[0])


async def here(script: str, stage: Stage) -> str:
    """The script with the names of this stage."""
    if f"subscriptions add rostering {SINK}" in script:
        await stage.run("poller subscriptions remove rostering --yes || true")
    if (found := ENTRY.search(script)) is not None:
        letter = await (stage.dead_event() if "rostering" in found[0] else stage.letter())
        script = ENTRY.sub(letter, script)
    script = script.replace("127.0.0.1:8080", stage.address)
    script = script.replace("/run/secrets/poller", str(stage.config.parent / "token"))
    return script.replace(SINK, f"{stage.sink.url} --allow-private")


@pytest.mark.thorough
async def test_the_commands_in_the_text(tmp_path: Path) -> None:
    """Each command named in a line of text or a table exits with 0."""
    async with staged(tmp_path, changes_per_second=5) as stage:
        await stage.run(f"poller subscriptions add rostering {stage.sink.url} --allow-private")
        quickly = Program(POLLER_CONFIG=str(stage.config))
        for command in commands():
            if run_elsewhere(command):
                continue
            named = command.replace("FEED", FEED).replace("SUBSCRIPTION", "rostering").replace(" ID", " rostering")
            if command.startswith("poller release"):
                await stage.hold()
            if command.startswith("poller replay"):
                await quickly.run("replay", "rostering", "--cancel")  # the previous replay may still be running
            if command.startswith(ENDLESS):
                await stage.begun(named)
            else:
                ended = await quickly.run(*shlex.split(named)[1:])
                for _ in range(5):
                    if "are held" not in ended.err:
                        break
                    await stage.hold()  # a full reading had ended the hold before the command came
                    ended = await quickly.run(*shlex.split(named)[1:])
                assert ended.code == 0, f"{named}\n{ended.out}\n{ended.err}"
