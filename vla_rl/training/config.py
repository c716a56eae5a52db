"""The configuration of a run: every part's own section, composed here because only the command line knows all parts."""

from dataclasses import dataclass, field
from typing import Any

from robot_io.gate import GateConfig
from vla_rl.acting.task_config import TakeoverConfig, TaskConfig
from vla_rl.algorithms.base import Learning
from vla_rl.core.config import fill_parts, part
from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges
from vla_rl.data.cache import RetentionConfig
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.execution.virtual import LatencyConfig
from vla_rl.policies.base import PolicyConfig
from vla_rl.training.plan import BudgetConfig, check_run_seed

FULL_PRECISION = "torch"


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. With the same config a run on the same machine gives the same weights.

    Attributes:
        latency: of inference in simulated episodes, in virtual time; the default: none.
        gate: limits of the robot; those that are empty are the environment's.
        algorithm: what practice does to the policy; a name of the door ``vla_rl.algorithms``.
        learning: the options of that algorithm.
        supervised: those of ``sft``, which makes the policy that practice starts from.
        retention: which episodes training holds at most; the store keeps all.
        seed: of demonstrations, initial weights, batches and practice episodes.
        workers: rollout processes; 0 runs episodes in the learner's process.
        environments_per_worker: how many episodes a process runs in turns, whose policy plans for all of them in one
            forward pass. With more than one, actions may differ in their last bit, if the processor computes a row of a
            batch differently. A resumed run then differs from an uninterrupted one.
        ray: Address of a Ray cluster for the workers; "local" starts one here. Its machines need this package and no
            shared disk. null: processes on this machine.
        torch_threads: Threads of the learner, which soon sleep while they wait. 0: one for each core, up to eight, less
            those of workers that play while it learns. Another number of threads gives other weights in their last
            bits.
        device: of the learner, as torch names it. Only on "cpu" does a resumed run equal an uninterrupted one.
        rollout_device: where policies are run when they act.
        exploration: of the policy that practices: standard deviation of a constant offset of each chunk, in normalized
            action units. Independent noise averages out over a chunk; a coherent offset shows what it leads to.
        rollout_precision: Precision of the policy in practice, where a robot's computer will act in a low one. ``fp32``
            or ``int8-dynamic`` use ONNX Runtime. ``trt`` uses TensorRT engines on this machine's GPU, built once and
            refitted with every version. Learning and evaluation stay in full precision, ``torch``.
        sinks: further subscribers of every metric, beside metrics.jsonl and TensorBoard: entry points of
            ``vla_rl.sinks`` (wandb, mlflow, trackio of plugins/vla_rl_trackers) or ``module:Name``.
    """

    task: TaskConfig = field(default_factory=TaskConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    policy: PolicyConfig = part("policies", inside="kind", default="flow_vla")
    algorithm: str = "habc"
    learning: Any = part("algorithms", beside="algorithm")
    supervised: Learning = field(default_factory=Learning)
    execution: ExecutionConfig = part("strategies", inside="strategy", default="naive")
    latency: LatencyConfig = field(default_factory=LatencyConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    takeover: TakeoverConfig = field(default_factory=TakeoverConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    seed: int = 0
    workers: int = 2
    environments_per_worker: int = 1
    ray: str | None = None
    torch_threads: int = 1
    device: str = "cpu"
    rollout_device: str = "cpu"
    exploration: float = 0.0
    rollout_precision: str = FULL_PRECISION
    sinks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        fill_parts(self)
        check_run_seed(self.seed)
        check_ranges(
            self, "", exploration="[0, 1]", workers=">= 0", torch_threads=">= 0", environments_per_worker=">= 1"
        )
        if self.budget.staleness and self.workers == 0:
            raise ConfigError("with budget.staleness workers play while the learner learns: set workers to 1 or more")
        if self.budget.rounds:
            self.learning.check_steps(self.budget.steps_per_round, "budget.steps_per_round")
        if self.ray is not None and self.workers == 0:
            raise ConfigError("a Ray cluster runs workers; set workers to 1 or more, or ray to null")
