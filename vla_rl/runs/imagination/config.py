"""Options of imagination in a practice run: a section of the run's configuration."""

from dataclasses import dataclass, field

from vla_rl.core.errors import ConfigError
from world_model.coevolution import CoEvolutionConfig
from world_model.imagined_env import ImaginedEnvConfig
from world_model.improvement import GroupConfig
from world_model.starts import StartConfig


@dataclass(frozen=True)
class ImaginationConfig:
    """Imagination in a practice run.

    Attributes:
        coevolution: when it is made, renewed and used.
        preset: of the world model, a file in ``configs/world_model``.
        begin_with: folder of a world model of this task that was trained elsewhere (``vla-rl imagine train``, another
            run) and is taken instead of training a first one; "": none. Its sizes replace the preset's.
        near_success_episodes: scripted episodes for the world model, spent once, before it is trained.
        starts: where imagined episodes begin.
        env: how they end.
        group: masked group-relative optimisation, see `RunImagination.improve`.
        group_updates: of it in a round; 0 switches it off.
        groups_at_once: groups that are imagined side by side.
    """

    coevolution: CoEvolutionConfig = field(default_factory=CoEvolutionConfig)
    preset: str = "cpu-tiny"
    begin_with: str = ""
    near_success_episodes: int = 200
    starts: StartConfig = field(default_factory=StartConfig)
    env: ImaginedEnvConfig = field(default_factory=ImaginedEnvConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    group_updates: int = 0
    groups_at_once: int = 2

    def __post_init__(self) -> None:
        if self.group_updates < 0 or self.groups_at_once < 1:
            raise ConfigError(
                "imagination: expected group_updates >= 0 and groups_at_once >= 1, found "
                f"{self.group_updates} and {self.groups_at_once}"
            )

    @property
    def cuts(self) -> bool:
        """Whether imagined episodes are cut before they have an outcome."""
        return self.env.horizon > 0
