"""The YAML files that come with the package, found by name."""

from pathlib import Path

from vla_rl.core.errors import UserError, did_you_mean

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
if not CONFIGS.exists():  # a source checkout; wheels carry the folder inside the package
    CONFIGS = CONFIGS.parents[1] / "configs"

OF_FINETUNE = ("finetune", "offline")
"""The configs that are not of a run with practice, but of ``vla-rl finetune``; the first is its default."""


def config_names() -> list[str]:
    """The names of the configs of runs, sorted."""
    return sorted(file.stem for file in CONFIGS.glob("*.yaml") if file.stem not in OF_FINETUNE)


def config_file(name: str) -> Path:
    """A config by path, or by name from the ones that come with the package.

    Raises:
        UserError: if there is neither.
    """
    if Path(name).suffix in (".yaml", ".yml"):
        return Path(name)
    known = [*config_names(), *OF_FINETUNE]
    if name not in known:
        raise UserError(f"there is no config {name!r}.{did_you_mean(name, known)}")
    return CONFIGS / f"{name}.yaml"
