"""Policies and episodes to and from the Hugging Face hub, or a folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_rl.acting.policy_folder import find_policy
from vla_rl.core.errors import UserError, one_line
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.lerobot_import import import_lerobot
from vla_rl.data.store import EpisodeStore


def push(source: Path, place: str, episodes: bool = False, private: bool = False) -> str:
    """Upload a policy, or episodes as a LeRobotDataset. Returns where they are.

    Args:
        source: A run (its newest policy, with ``episodes`` its episodes), a policy folder or an episode store.
        place: ``USER/NAME`` on the hub, or a new folder, ``./NAME`` or an absolute path.
        private: A new place on the hub is seen by its owner alone.

    Raises:
        UserError: If there is nothing to push, or the hub cannot be reached.
    """
    is_run = (source / "config.yaml").exists()
    store = source / "episodes" if is_run else source
    if (store / "store.json").exists() and (episodes or not is_run):
        if _is_folder(place):
            return str(export_lerobot(EpisodeStore(store, create=False), Path(place)))
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        with tempfile.TemporaryDirectory() as exported:
            root = export_lerobot(EpisodeStore(store, create=False), Path(exported) / "dataset")
            with _reaching():
                LeRobotDataset(place, root=root).push_to_hub(private=private)
        return f"datasets/{place}"
    if episodes:
        raise UserError(f"{source} is neither a run nor an episode store; leave --episodes out to push a policy")
    policy = find_policy(source).path
    if _is_folder(place):
        return str(_copied(policy, Path(place)))
    from huggingface_hub import HfApi

    with _reaching():
        HfApi().create_repo(place, private=private, exist_ok=True)
        HfApi().upload_folder(repo_id=place, folder_path=policy)
    return str(place)


def pull(place: str, target: Path, episodes: bool = False) -> str:
    """Download a policy, or ``episodes``, from a place as of `push` into a new folder. Returns what came.

    Raises:
        UserError: If the place is not there, or the folder is.
    """
    if target.exists():
        raise UserError(f"{target} is there already; pull into a new folder")
    with tempfile.TemporaryDirectory() as staging:
        found = Path(place)
        if not _is_folder(place):
            from huggingface_hub import snapshot_download

            kind = "dataset" if episodes else "model"
            with _reaching():
                found = Path(snapshot_download(place, repo_type=kind, local_dir=staging))
        if not found.is_dir():
            raise UserError(f"there is no folder {found}; a place on the hub is named USER/NAME")
        if (found / "meta" / "info.json").exists():
            try:
                names = import_lerobot(found, EpisodeStore(target))
            except UserError:
                shutil.rmtree(target)
                raise
            return f"{len(names)} episodes in {target}"
        return str(_copied(found, target))


@contextmanager
def _reaching() -> Iterator[None]:
    """What the way to the hub raises is no fault of the program."""
    import httpx
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        yield
    except (httpx.HTTPError, LocalEntryNotFoundError) as error:
        raise UserError(f"the hub: {one_line(error)}; try again, or use a folder, ./NAME") from error


def _is_folder(place: str) -> bool:
    return place.startswith((".", "/", "~"))


def _copied(source: Path, target: Path) -> Path:
    if target.exists():
        raise UserError(f"{target} is there already; name a new folder")
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns(".cache")))
