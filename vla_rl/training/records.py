"""The records of a run while a process works on it: metrics, TensorBoard, summary, and the report at its end."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from vla_rl.acting.redraw import Redrawer
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.protocols import Subscriber
from vla_rl.core.registry import find
from vla_rl.data.run_folder import RunFolder
from vla_rl.report.html import build_report
from vla_rl.report.sinks import JsonlSink, MetricSink, TensorBoardSink, read_records
from vla_rl.training.checkpoint import load_newest_checkpoint
from vla_rl.training.machine import describe_machine


@dataclass(frozen=True)
class RunRecords:
    """What a process finds of a run, and the subscribers of what it does.

    Attributes:
        subscribers: get every metric.
        published: (kind, round) of the metrics that earlier processes of this run have published.
        progress: the newest checkpoint, (gradient steps done, state); None where there is none.
    """

    subscribers: Sequence[Subscriber] = ()
    published: Iterable[tuple[str, int]] = ()
    progress: tuple[int, dict[str, Any]] | None = None


@contextmanager
def open_records(
    folder: RunFolder,
    described: dict[str, Any],
    task: TaskConfig | None = None,
    sinks: Sequence[str] = (),
    watching: Sequence[Subscriber] = (),
) -> Iterator[RunRecords]:
    """Lock a run folder, and yield the `RunRecords` of the run so far.

    When all went well, the report is built and the run is called finished.

    Args:
        folder: Of the run.
        described: What the summary should say of the run from its start.
        task: Of the run, in whose simulation the report draws episodes again; None: it shows what was recorded.
        sinks, watching: Entry points of ``vla_rl.sinks``, and sinks of the caller, beside those of the folder.

    Raises:
        UserError: if another process works on it, or what it has written cannot be read.
    """
    with folder, ExitStack() as stack:
        written: list[MetricSink] = [JsonlSink(folder.metrics_file), TensorBoardSink(folder.path / "tensorboard")]
        written += [find("sinks", name)(folder.path, described) for name in sinks]
        for sink in written:
            stack.enter_context(sink)
        progress = load_newest_checkpoint(folder.checkpoints)
        for sink in written:
            sink.truncate_after(progress[0] if progress else 0)
        published = [(record["kind"], record["round"]) for record in read_records(folder.metrics_file)]
        folder.write_summary({**folder.read_summary(), **described, "machine": describe_machine()})
        yield RunRecords([*written, *watching], published, progress)
        with closing(Redrawer(task)) as redraw:
            build_report(folder.path, redraw)
        folder.write_summary({**folder.read_summary(), "finished": True})
