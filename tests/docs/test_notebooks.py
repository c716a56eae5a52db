"""The notebooks run from top to bottom on a run of a few seconds."""

from pathlib import Path

import pytest

from benchmarks.docs_commands import ROOT, workplace

nbformat = pytest.importorskip("nbformat", reason="needs the group docs")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own programs
def test_notebooks_run(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) == 2
    with workplace(tmp_path / "here") as here:
        for file in notebooks:
            notebook = nbformat.read(file, as_version=4)
            committed = [bool(cell.get("outputs")) for cell in notebook.cells]
            NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(here)}}).execute()
            assert [bool(cell.get("outputs")) for cell in notebook.cells] == committed, f"{file.name}: execute it anew"
