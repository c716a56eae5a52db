"""The records of a run while a process works on it: metrics, TensorBoard, summary, and the report at its end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vla_rl.training.run_folder import RunFolder


@contextmanager
def open_records(folder: RunFolder, described: dict[str, Any]) -> Iterator[Any]:
    """Lock a run folder, and yield the `vla_rl.training.learning.RunRecords` of the run so far. When all went well, the
    report is built and the run is called finished.

    Args:
        folder: of the run.
        described: what the summary should say of the run from its start.

    Raises:
        UserError: if another process works on it, or what it has written cannot be read.
    """
    from vla_rl.report.html import build_report
    from vla_rl.report.sinks import JsonlSink, TensorBoardSink, read_records
    from vla_rl.runs.machine import describe_machine
    from vla_rl.training.checkpoint import load_newest_checkpoint
    from vla_rl.training.learning import RunRecords

    with folder, JsonlSink(folder.metrics_file) as metrics, TensorBoardSink(folder.path / "tensorboard") as board:
        progress = load_newest_checkpoint(folder.checkpoints)
        for sink in (metrics, board):
            sink.truncate_after(progress[0] if progress else 0)
        published = [(record["kind"], record["round"]) for record in read_records(folder.metrics_file)]
        folder.write_summary({**folder.read_summary(), **described, "machine": describe_machine()})
        yield RunRecords([metrics, board], published, progress)
        build_report(folder.path)
        folder.write_summary({**folder.read_summary(), "finished": True})
