"""Options of imagination in a practice run: a section of the run's configuration."""

from dataclasses import dataclass, field

from world_model.coevolution import CoEvolutionConfig
from world_model.imagined_env import ImaginedEnvConfig


@dataclass(frozen=True)
class ImaginationConfig:
    """Imagination in a practice run.

    Attributes:
        coevolution: when it is made, renewed and used.
        preset: of the world model, a file in ``configs/world_model``.
        begin_with: folder of a world model of this task that was trained elsewhere (``vla-rl imagine train``, another
            run) and is taken instead of training a first one; "": none. Its sizes replace the preset's.
        near_success_episodes: scripted episodes for the world model, spent once, before it is trained.
        env: how they end.
    """

    coevolution: CoEvolutionConfig = field(default_factory=CoEvolutionConfig)
    preset: str = "cpu-tiny"
    begin_with: str = ""
    near_success_episodes: int = 200
    env: ImaginedEnvConfig = field(default_factory=ImaginedEnvConfig)

    @property
    def cuts(self) -> bool:
        """Whether imagined episodes are cut before they have an outcome."""
        return self.env.horizon > 0
