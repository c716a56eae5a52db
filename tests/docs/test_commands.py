"""Every command and Python block of README and docs/, and every notebook, runs, or it is said why not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.docs_commands import (
    ELSEWHERE,
    NEEDS,
    ROOT,
    SHELL,
    SMALLER,
    UNRUN,
    commands,
    pages,
    run_command,
    workplace,
)

WITH_COMMANDS = [page for page in pages() if commands(page)]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all pages and notebooks."""
    with workplace(tmp_path_factory.mktemp("pages") / "here") as folder:
        yield folder


@pytest.fixture(scope="module")
def done(here: Path) -> set[str]:
    """The commands that have been run there: each is run once."""
    del here
    return set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own programs
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_from_top_to_bottom(here: Path, file: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs the group docs")
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    committed = [bool(cell.get("outputs")) for cell in notebook.cells]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(here)}}).execute()
    assert [bool(cell.get("outputs")) for cell in notebook.cells] == committed, "execute it anew"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what other packages do in these programs; the tests of each part are strict
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run_from_top_to_bottom(done: set[str], page: Path) -> None:
    names: dict[str, object] = {}
    for command in commands(page):
        text = command.text.removeprefix(".venv/bin/")
        if not (command.unrun or command.run_elsewhere or text in done):
            assert run_command(command, names) == 0, text
            done.add(text)


def test_hardly_anything_is_left_unrun_and_every_exception_is_one() -> None:
    assert NOTEBOOKS
    every = [command for page in WITH_COMMANDS for command in commands(page)]
    unrun = [command for command in every if command.unrun]
    assert len(unrun) <= 0.15 * len(every), "\n".join(f"{command.page}: {command.text}" for command in unrun)
    assert all((ROOT / command.run_elsewhere).exists() for command in every)
    for table in (ELSEWHERE, NEEDS, SHELL, UNRUN, SMALLER):
        for pattern in table:
            assert any(re.match(pattern, command.text) for command in every), f"nothing matches {pattern!r} any more"
