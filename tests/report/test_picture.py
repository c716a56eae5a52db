import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.pictures.picture import save_picture
from vla_rl.core.errors import UserError


def drawn(run: Path, out: Path) -> np.ndarray:
    save_picture(run, out)
    with Image.open(out) as picture:
        return np.asarray(picture.convert("RGB"))


@pytest.mark.parametrize("missing", [None, "traces", "summary.json"])
def test_the_picture_is_1200_px_wide_and_shows_what_there_is(run_dir: Path, tmp_path: Path, missing: str | None):
    if missing is not None:
        shutil.rmtree(run_dir / missing) if (run_dir / missing).is_dir() else (run_dir / missing).unlink()
    pixels = drawn(run_dir, tmp_path / "picture.png")
    assert pixels.shape[1] == 1200
    human_shade = (np.abs(pixels.astype(int) - (0xF9, 0xDF, 0xB5)).max(axis=-1) <= 2).mean()
    interval_band = (np.abs(pixels.astype(int) - (220, 233, 247)).max(axis=-1) <= 3).mean()
    assert (human_shade > 0.02) == (missing != "traces"), "the takeover is preferred"
    assert (interval_band > 0.005) == (missing != "summary.json")


def test_a_run_without_anything_to_draw_is_refused(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(UserError, match="neither an evaluation nor a trace"):
        save_picture(tmp_path, tmp_path / "picture.png")


def test_a_place_that_cannot_be_written_is_one_clear_error(run_dir: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the picture"):
        save_picture(run_dir, tmp_path / "file" / "picture.png")
