import shutil
from pathlib import Path

import pytest
from run_maker import write_run


@pytest.fixture(scope="session")
def _whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole")
    write_run(run)
    return run


@pytest.fixture
def run_dir(_whole_run: Path, tmp_path: Path) -> Path:
    """A run folder of one's own, to be damaged at will."""
    return Path(shutil.copytree(_whole_run, tmp_path / "run"))
