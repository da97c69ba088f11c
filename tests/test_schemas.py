"""Every published JSON Schema is checked by independent validators: Ajv and check-jsonschema.

They read ``pattern`` by ECMA-262 with the flag u, unlike Python. Without Node and its packages the tests of Ajv are
skipped, see :mod:`tests.node`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from poller.changes.events import DIALECT, events_document
from poller.config.load import load
from poller.config.settings import config_schema
from poller.control.asyncapi import EXAMPLE, asyncapi, schemas_of
from poller.web.documents import openapi
from tests import documents
from tests.node import needs_node

DEPLOY: Final = Path(__file__).parents[1] / "deploy"
EXAMPLE_FILE: Final = DEPLOY.parent / "poller" / "config" / "example.toml"
FILES: Final = [*sorted(DEPLOY.rglob("*.toml")), EXAMPLE_FILE]
BLOCKS: Final = re.findall(r"^```toml\n(.*?)^```$", documents.text(), re.DOTALL | re.MULTILINE)
SETTINGS: Final = load(None, EXAMPLE)

# Reads {name: schema}, and values that the schema "config" is to accept; prints what is wrong with each.
AJV: Final = """
const Ajv = require("ajv/dist/2020");
const formats = require("ajv-formats");
const { schemas, values } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const wrong = [];
const ajv = new Ajv({ allErrors: true, logger: false }); // one for all: each compiles the meta-schema
formats(ajv);
for (const [name, schema] of Object.entries(schemas)) {
  try {
    const validate = ajv.compile(schema);
    for (const [of, value] of Object.entries(values[name] ?? {}))
      if (!validate(value)) wrong.push(`${of}: ${ajv.errorsText(validate.errors)}`);
  } catch (error) { wrong.push(`${name}: ${error.message}`); }
}
console.log(JSON.stringify(wrong));
"""


def _components(document: Mapping[str, Any]) -> dict[str, Any]:
    """Each schema of a document's components, with the schemas it refers to."""
    schemas = document["components"]["schemas"]
    moved = json.loads(json.dumps(schemas).replace('"#/components/schemas/', '"#/$defs/'))
    return {name: {"$schema": DIALECT, "$defs": moved, "$ref": f"#/$defs/{name}"} for name in schemas}


def given_out() -> dict[str, Any]:
    """All published schemas, by origin."""
    events = schemas_of(SETTINGS)
    parts = {
        "event": {name: {"$schema": DIALECT} | schema for name, schema in events.items()},
        "asyncapi": _components(asyncapi(SETTINGS)),
        "openapi": _components(openapi(SETTINGS.feed_ids)),
    }
    single = {f"{part} {name}": schema for part, schemas in parts.items() for name, schema in schemas.items()}
    return {"config": config_schema(), "events": events_document(events)} | single


def configurations() -> dict[str, Any]:
    """The files of deploy and the blocks of the documents, parsed; a partial block is added to the first one."""
    files = {str(path.relative_to(DEPLOY.parent)): tomllib.loads(path.read_text("utf-8")) for path in FILES}
    whole = [block if "[[sources]]" in block else f"{BLOCKS[0]}\n{block}" for block in BLOCKS]
    return files | {f"document {number}": tomllib.loads(text) for number, text in enumerate(whole, 1)}


def _ajv(schemas: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    given = json.dumps({"schemas": schemas, "values": {"config": values}})
    done = subprocess.run(["node", "-e", AJV], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _check_jsonschema(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "check_jsonschema", *map(str, arguments))
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_node("ajv", "ajv-formats")
def test_ajv_compiles_every_schema_and_accepts_what_we_show() -> None:
    """Ajv compiles every schema, and accepts the files of deploy and the documents' blocks."""
    assert len(configurations()) >= 5
    assert _ajv(given_out(), configurations()) == []


@needs_node("ajv", "ajv-formats")
def test_ajv_refuses_what_is_wrong() -> None:
    """Control: Ajv refuses a pattern that only Python accepts, and an unknown key."""
    [pattern] = _ajv({"config": {"type": "string", "pattern": '^[!-\\"]$'}}, {})
    assert "Invalid" in pattern
    [key] = _ajv({"config": config_schema()}, {"one": next(iter(configurations().values())) | {"htpp": {}}})
    assert "additional properties" in key


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The schemas and configurations as files."""
    directory = tmp_path_factory.mktemp("schemas")
    for number, schema in enumerate(given_out().values()):
        (directory / f"{number:03}.schema.json").write_text(json.dumps(schema), "utf-8")
    for number, value in enumerate(configurations().values()):
        (directory / f"{number:03}.value.json").write_text(json.dumps(value), "utf-8")
    return directory


@pytest.mark.thorough  # takes ten seconds, and Ajv checks the same schemas
def test_check_jsonschema_takes_every_schema(written: Path) -> None:
    """Each schema is valid by its own dialect, with patterns of ECMA-262."""
    done = _check_jsonschema("--check-metaschema", *sorted(written.glob("*.schema.json")))
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough
def test_check_jsonschema_accepts_what_we_show(written: Path, tmp_path: Path) -> None:
    """The schema accepts the files of deploy and the documents' blocks, and refuses an unknown table."""
    schema = written / "000.schema.json"  # of the configuration
    done = _check_jsonschema("--schemafile", schema, *FILES, *sorted(written.glob("*.value.json")))
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(FILES[0].read_text("utf-8") + "\n[htpp]\n", "utf-8")
    assert _check_jsonschema("--schemafile", schema, wrong).returncode == 1
