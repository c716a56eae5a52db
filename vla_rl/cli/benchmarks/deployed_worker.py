"""A rollout worker that acts with a deployed policy where others act with the one in torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, override

from vla_rl.cli.rollouts import SimulatorWorker
from vla_rl.cli.run_config import RunConfig
from vla_rl.core.types import Observation


class DeployedWorker(SimulatorWorker):
    """Args:
    config: of the run.
    precision: ``torch``, or one of `deploy_trt.exploration.PRECISIONS`.
    observations: for calibration.
    """

    def __init__(self, config: RunConfig, precision: str, observations: Sequence[Observation]) -> None:
        super().__init__(config)
        self._policies = None
        self._acting_policy: Any = None
        self._acting_folder: Path | None = None
        if precision != "torch":
            from deploy_trt.exploration import ExplorationPolicies

            self._policies = ExplorationPolicies(precision, observations)

    @override
    def _load(self, folder: Path) -> Any:
        if self._policies is None:
            return super()._load(folder)
        if folder != self._acting_folder:
            self._acting_policy, self._acting_folder = self._policies.load(folder), folder
        return self._acting_policy
