"""Share a policy or episodes through the Hugging Face hub, or through a folder, and get them back.

push takes a run (its newest policy, or with --episodes what it recorded), a policy folder, or an episode store;
episodes travel as a LeRobotDataset. A place is USER/NAME on the hub, where HF_TOKEN or `hf auth login` says who you
are, or a folder, ./NAME or an absolute path, which needs no network.

Example: vla-rl hub push runs/demo ./shared/peg-policy
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_rl.core.errors import UserError, one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("way", choices=("push", "pull"), help="upload, or download")
    parser.add_argument("source", help="push: a folder of this machine; pull: a place")
    parser.add_argument("target", help="push: a place; pull: a new folder of this machine")
    parser.add_argument("--episodes", action="store_true", help="of a run its episodes, of the hub a dataset")
    parser.add_argument("--private", action="store_true", help="a new place on the hub is seen by you alone")


def run(arguments: argparse.Namespace) -> int:
    done = _push(arguments) if arguments.way == "push" else _pull(arguments)
    print(done)
    return 0


def _push(arguments: argparse.Namespace) -> str:
    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.data.lerobot_export import export_lerobot
    from vla_rl.data.store import EpisodeStore

    source, place = Path(arguments.source), arguments.target
    is_run = (source / "config.yaml").exists()
    store = source / "episodes" if is_run else source
    if (store / "store.json").exists() and (arguments.episodes or not is_run):
        if _is_folder(place):
            return str(export_lerobot(EpisodeStore(store, create=False), Path(place)))
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        with tempfile.TemporaryDirectory() as exported:
            root = export_lerobot(EpisodeStore(store, create=False), Path(exported) / "dataset")
            with _reaching():
                LeRobotDataset(place, root=root).push_to_hub(private=arguments.private)
        return f"datasets/{place}"
    if arguments.episodes:
        raise UserError(f"{source} is neither a run nor an episode store; leave --episodes out to push a policy")
    policy = find_policy(source).path
    if _is_folder(place):
        return str(_copied(policy, Path(place)))
    from huggingface_hub import HfApi

    with _reaching():
        HfApi().create_repo(place, private=arguments.private, exist_ok=True)
        HfApi().upload_folder(repo_id=place, folder_path=policy)
    return str(place)


def _pull(arguments: argparse.Namespace) -> str:
    from vla_rl.data.lerobot_import import import_lerobot
    from vla_rl.data.store import EpisodeStore

    place, target = arguments.source, Path(arguments.target)
    if target.exists():
        raise UserError(f"{target} is there already; pull into a new folder")
    with tempfile.TemporaryDirectory() as staging:
        found = Path(place)
        if not _is_folder(place):
            from huggingface_hub import snapshot_download

            kind = "dataset" if arguments.episodes else "model"
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
