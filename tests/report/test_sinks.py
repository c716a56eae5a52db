import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from run_maker import make_episode

from vla_rl.core.errors import UserError
from vla_rl.report import sinks
from vla_rl.report.sinks import JsonlSink, TensorBoardSink, read_records, to_json

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def no_constants(name: str):
    raise AssertionError(f"{name} is not JSON")


def record(step: int, **values):
    return {"kind": "train", "round": 0, "step": step, **values}


@given(st.dictionaries(st.text(), plain))
def test_every_record_is_one_line_of_strict_json(metrics):
    line = json.dumps(to_json(metrics), allow_nan=False)
    assert json.loads(line, parse_constant=no_constants).keys() == metrics.keys()
    assert "\n" not in line


def test_numpy_and_numbers_that_are_not_finite(tmp_path: Path):
    with JsonlSink(tmp_path / "metrics.jsonl") as sink:
        sink.on_metrics(
            record(np.int64(3), loss=np.float32(0.5), bad=np.nan, worse=np.float64(np.inf), row=np.array([1.0, np.nan]))
        )
    (read,) = read_records(tmp_path / "metrics.jsonl")
    assert read == {"kind": "train", "round": 0, "step": 3, "loss": 0.5, "bad": None, "worse": None, "row": [1.0, None]}


def test_objects_are_refused_by_name():
    with pytest.raises(TypeError, match="cannot be a PosixPath"):
        to_json({"file": Path("x")})


def test_lines_can_be_read_while_the_run_goes_on(tmp_path: Path):
    with JsonlSink(tmp_path / "metrics.jsonl") as sink:
        sink.on_metrics(record(1))
        assert len(read_records(tmp_path / "metrics.jsonl")) == 1


def test_a_resumed_run_has_no_doubled_lines(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    with JsonlSink(file) as sink:
        for step in (50, 100, 150, 200):
            sink.on_metrics(record(step, attempt=1))
    with JsonlSink(file) as sink:
        sink.truncate_after(100)
        for step in (150, 200, 250):
            sink.on_metrics(record(step, attempt=2))
    assert [(r["step"], r["attempt"]) for r in read_records(file)] == [(50, 1), (100, 1), (150, 2), (200, 2), (250, 2)]


def test_a_line_torn_by_a_crash_is_removed_and_does_not_swallow_the_next(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    with JsonlSink(file) as sink:
        sink.on_metrics({"step": 3})
    assert file.read_bytes() == b'{"step": 1}\n{"step": 3}\n'


def test_a_damaged_line_is_passed_over_on_truncation(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 1}\n\xff\x00\n[1]\n{"step": 9}\n')
    with JsonlSink(file) as sink:
        sink.truncate_after(5)
    assert file.read_bytes() == b'{"step": 1}\n'


def test_a_full_disk_is_one_clear_error():
    with (
        JsonlSink(Path("/dev/full")) as sink,
        pytest.raises(UserError, match="cannot write to the metrics file /dev/full: No space left"),
    ):
        sink.on_metrics(record(1))


def test_a_missing_folder_is_one_clear_error(tmp_path: Path):
    with pytest.raises(UserError, match="cannot open the metrics file"):
        JsonlSink(tmp_path / "nowhere" / "metrics.jsonl")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_was_written_and_drops_what_was_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    # Files of one second and process are read in the order of their names, in which 10 comes before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for attempt, steps in ((1, (50, 100, 150)), (2, (150, 200))):
        with TensorBoardSink(tmp_path) as sink:
            if attempt == 2:
                sink.truncate_after(100)
            for step in steps:
                sink.on_metrics(record(step, loss=float(attempt), bad=np.nan, note="text"))
    board = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(board.Tags()["scalars"]) == ["train/loss"]
    assert [(event.step, event.value) for event in board.Scalars("train/loss")] == [
        (50, 1),
        (100, 1),
        (150, 2),
        (200, 2),
    ]


def test_sinks_and_report_need_no_torch():
    modules = ", ".join(f"vla_rl.report.{name}" for name in ("sinks", "html"))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tensorboard_shows_moving_pictures_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sinks, "_CLIP_FRAMES", 48)
    monkeypatch.setattr(sinks, "_CLIP_PX", 128)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoardSink(tmp_path) as sink:
        for number, success in enumerate((0.5, 0.75)):
            step = 100 * (number + 1)
            sink.on_metrics({"kind": "evaluate", "round": number, "step": step, "success": success, "episodes": 4})
        sink.on_episode(make_episode("v0001-000000", 6, False))
    found = EventAccumulator(str(tmp_path)).Reload()
    (picture,) = found.Images("evaluate/failure")
    assert picture.step == 200
    with Image.open(io.BytesIO(picture.encoded_image_string)) as moving:
        assert (moving.n_frames, moving.info["duration"], moving.height) == (6, 50, 128)
    table = found.Tensors("evaluate/table")[-1].tensor_proto.string_val[0].decode()
    assert "| 0 | 100 | 50.0% | 4 |\n| 1 | 200 | 75.0% | 4 |" in table
