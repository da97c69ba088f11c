"""Laws of the program's structure, measured by :mod:`tests.house`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import GOALS, House, length
from tests.house_paths import FRAME, PATHS, is_frame, measured


@pytest.fixture(scope="module")
def program() -> House:
    return House()


@pytest.fixture
def house(program: House) -> House:
    if not program.has_layout:
        pytest.skip("the program is not yet in the folders that the laws are about: there is no poller/daemon")
    return program


@pytest.mark.parametrize("figure", sorted(figure for figure in GOALS if not figure.startswith("files: ")))
def test_a_goal_that_was_reached_is_kept(house: House, figure: str) -> None:
    """A reached goal stays met; `python -m tests.house --words` lists the faults."""
    faults = [str(fault) for name, found in house.faults() if name == figure for fault in found]
    counted = house.figures()[figure]
    assert counted is not None
    assert counted <= GOALS[figure], "\n".join(faults)


@pytest.mark.thorough
def test_the_paths_lead_from_end_to_end() -> None:
    """Each path is measured through its folders, and stays within its goal."""
    paths = measured()
    assert set(paths) == set(PATHS)
    for path, folders in {
        "page": {"source", "changes", "store"},
        "entry": {"delivery", "store"},
        "pause": {"cli", "store"},
    }.items():
        assert folders <= {file.partition("/")[0] for file in paths[path]}, path
        figure = f"files: {PATHS[path]}"
        assert length(paths[path]) <= GOALS[figure], sorted(paths[path])


def test_each_figure_with_a_goal_is_counted(program: House) -> None:
    """Every goal has a figure that is measured."""
    assert set(GOALS) <= {*program.figures(), *(f"files: {path}" for path in PATHS.values())}


def _house(directory: Path, **files: str) -> House:
    for name, text in ({"__init__": ""} | files).items():
        path = directory / "poller" / f"{name.replace('__in_', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.parent.name != "poller":
            (path.parent / "__init__.py").write_text('"""A package."""\n')
    return House(directory)


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    """Imports are found at the top, in a function or for types, of a module or a name; each pair counts once."""
    house = _house(
        tmp_path,
        store__in_keys="KEY = 1\n",
        store__in_feed="from poller.store import keys\nfrom poller.store.keys import KEY\nimport poller.store.keys\n",
        app="def run():\n    from poller.store.feed import read\n",
        clock="import asyncio\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from poller.app import run\n",
    )
    assert house.imports["store.feed"] == {"store.keys"}
    assert house.imports["app"] == {"store.feed"}
    assert house.imports["clock"] == {"app"}
    assert house.edges == 3
    assert [one.name for one in house.single] == ["app", "store.feed", "store.keys"]
    assert not house.circles


def test_a_circle_is_found_over_several_steps(tmp_path: Path) -> None:
    """Modules that import each other are one circle; a module that only imports one of them is not in it."""
    house = _house(
        tmp_path,
        a="import poller.b\n",
        b="from poller import c\n",
        c="def late():\n    from poller.a import x\n",
        d="import poller.a\n",
    )
    assert house.circles == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("store__in_keys", "redis__in_client", True),
        ("redis__in_client", "store__in_keys", False),
        ("store__in_keys", "store__in_feed", True),
        ("errors", "clock", True),
        ("errors", "http__in_ssrf", False),
        ("app", "web__in_app", True),
        ("web__in_app", "app", False),
        ("cli__in_tools", "sandbox__in_server", True),
        ("daemon__in_health", "sandbox__in_server", False),
        ("sandbox__in_server", "http__in_server", True),
        ("sandbox__in_server", "changes__in_records", False),
        ("cli__in_receive", "client__in_receiver", True),
        ("client__in_receiver", "errors", False),
        ("web__in_app", "client__in_receiver", False),
        ("errors", "elsewhere__in_anything", False),
    ],
)
def test_imports_go_one_way(tmp_path: Path, importer: str, imported: str, *, allowed: bool) -> None:
    """A module imports only what is below or beside it in the order; an unknown folder is a fault."""
    target = imported.replace("__in_", ".")
    house = _house(tmp_path, **{imported: "", importer: f"import poller.{target}\n"})
    assert (not house.against_order) is allowed


def test_names_at_fault_are_found(tmp_path: Path) -> None:
    """Gerunds, repeated class names, private words and empty verbs in names are found."""
    house = _house(
        tmp_path,
        source__in_paging="class Page: ...\n",
        source__in_retrying="class Page:\n    def take(self): ...\n    def renew(self): ...\n",
        source__in_settings="class DeadLetter: ...\nclass KeyLanes: ...\nclass Ordered: ...\n",
        source__in_dead_letters="",
    )
    assert house.gerunds == ["poller/source/retrying.py"]
    assert [fault.what for fault in house.repeated_classes] == ["Page"]
    assert [fault.what for fault in house.private_names] == ["KeyLanes"]
    assert [fault.what for fault in house.private_methods] == ["Page.take"]


def test_private_words_are_found_where_people_read(tmp_path: Path) -> None:
    """Private words are found in docstrings, comments, messages and documents, even across lines, but not in code."""
    (tmp_path / "README.md").write_text("Whoever reads. `poller resync --anew` sends two at once.\n")
    house = _house(
        tmp_path,
        clock='"""Says so\nmany."""\n\ntold = 1  # begins at\n# once\nraise ValueError(f"{told} amiss")\n',
        text="# Nobody\n\n# is told\n",
    )
    found = {kind: [fault.place for fault in faults] for kind, faults in house.private_words.items()}
    assert found == {
        "docstrings": ["poller/clock.py:1"],
        "comments": ["poller/clock.py:4", "poller/text.py:1", "poller/text.py:3"],
        "messages": ["poller/clock.py:6"],
        "documents": ["README.md:1"],
    }


def test_the_frame_is_no_part_of_a_path() -> None:
    """Folders and modules of the frame are recognized by their whole name."""
    assert is_frame("redis/client.py")
    assert is_frame("clock.py")
    assert not is_frame("source/client.py")
    assert not is_frame("redistribution.py")
    assert "source" not in FRAME
