"""Faults that once got through, one test each, and their nearest neighbors."""

import errno
import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from benchmarks.hostile import kinds
from benchmarks.hostile.verbs import effective_capabilities
from tests.fakes.resealed import resealed
from vla_rl.acting import browser
from vla_rl.acting.browser import BrowserPage, Input, serve_browser_page
from vla_rl.acting.task import open_robot
from vla_rl.cli.main import VERBS, main
from vla_rl.core.errors import CheckpointError, ConfigError, StoreError, UserError
from vla_rl.core.signing import TRUSTED, make_key, sign
from vla_rl.data.cache import FrameCache
from vla_rl.data.doctor import diagnose
from vla_rl.data.store import EpisodeStore
from vla_rl.training.config import TaskConfig


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    """Run a verb that has to refuse in one line; gives the line."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == code
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vla-rl: ")]
    assert len(told) == 1
    assert "internal error" not in told[0]
    return told[0]


def edit(file: Path, change: Callable[[dict], None], seal: bool = True) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(resealed(content) if seal else json.dumps(content))


@contextmanager
def without_override() -> Iterator[None]:
    """Root obeys permissions like anybody while its capabilities to override them are put aside, in this thread."""

    before = effective_capabilities(lambda sets: sets & ~0b110)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    try:
        yield
    finally:
        effective_capabilities(lambda _: before)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    kinds.make_policy(tmp_path / "policy")
    return tmp_path / "policy"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript", reason="exporting needs the extra 'trt'")
    folder = tmp_path_factory.mktemp("exported") / "deployment"
    kinds.make_deployment(folder)
    return folder


@pytest.fixture
def deployment(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "deployment"))


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    kinds.make_store(tmp_path / "store")
    return EpisodeStore(tmp_path / "store", create=False)


@pytest.fixture
def page() -> Iterator[int]:
    """The port of a page at which a person drives."""
    with serve_browser_page(BrowserPage(), 0) as address:
        yield int(address.rstrip("/").rpartition(":")[2])


def asked(port: int, headers: dict[str, str], body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest("POST", "/controls", skip_host="Host" in headers)
    for name, value in ({"Content-Length": str(len(body))} | headers).items():
        connection.putheader(name, value)
    connection.endheaders(body)
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_page_takes_what_it_sends_and_nothing_else(page: int) -> None:
    keys = json.dumps({"keys": [], "pressed": ["²"], "drag": [0, 0], "axes": [0, 0, 0]}).encode()
    assert asked(page, {}, keys) == 200
    assert asked(page, {"Origin": f"http://localhost:{page}", "Host": f"localhost:{page}"}, keys) == 200
    assert asked(page, {"Content-Length": "-1"}) == 400
    assert asked(page, {}, b"[" * 9000) == 400
    assert asked(page, {"Host": f"robot.example:{page}"}, keys) == 403
    assert asked(page, {"Origin": "http://robot.example"}, keys) == 403


@pytest.mark.parametrize("key", ["²", "٣", "10000000000", "0", "", "t" * 100])
def test_keys_of_other_keyboards_are_no_arms(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = BrowserPage()
    monkeypatch.setattr(browser, "browser_page_at", lambda port: served)
    monkeypatch.setattr(served, "wait_for_key", lambda: None)
    robot = open_robot(TaskConfig(image_size=32))
    robot.reset(0)
    person = browser.BrowserSupervisor(robot.env, browser.BrowserConfig(size_px=32, pace=20.0))
    person.reset(0)
    served.add(Input(pressed=(key,)))
    assert person.command(0, robot.rest_command()) is None
    robot.close()


def test_ports_that_there_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert "port 99999 cannot be used" in refused(capsys, "play", "--port", "99999")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["action"].update(scale=[1.0]),
        lambda manifest: manifest["action"].update(scale=[1e30, 1.0]),
        lambda manifest: manifest["action"].update(scale=[-1.0, 1.0]),
        lambda manifest: manifest["state"].update(offset=[0.0]),
        lambda manifest: manifest.update(action_mean=[0.0] * 3),
        lambda manifest: manifest.update(discrete=[[7, 0.0, 1.0]]),
        lambda manifest: manifest.update(horizon=10**9),
        lambda manifest: manifest["sampler"].update(kind="magic"),
        lambda manifest: manifest["spec"].update(control_hz=0.0),
        lambda manifest: manifest["graphs"].pop("step"),
        lambda manifest: manifest.update(policy_version=-5),
    ],
)
def test_numbers_of_a_manifest_are_checked_though_it_is_sealed(
    deployment: Path, change: Callable[[dict], None]
) -> None:
    from deploy_trt.runtime import load_deployed

    edit(deployment / "manifest.json", change)
    with pytest.raises(CheckpointError):
        load_deployed(deployment, require="ort-cpu")


@pytest.mark.slow
def test_a_changed_manifest_is_noticed(deployment: Path) -> None:
    from deploy_trt.runtime import load_deployed

    file = deployment / "manifest.json"
    whole = file.read_text()
    edit(file, lambda manifest: manifest["action"]["scale"].__setitem__(0, 2.0), seal=False)
    with pytest.raises(CheckpointError, match="digest"):
        load_deployed(deployment, require="ort-cpu")
    content = json.loads(whole)
    del content["content_sha256"]
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="has no content_sha256"):
        load_deployed(deployment, require="ort-cpu")
    file.write_text(json.dumps(content | {"format_version": 1}))
    with pytest.raises(CheckpointError, match="format version 1, this program reads 3; export the policy anew"):
        load_deployed(deployment, require="ort-cpu")


@pytest.mark.slow
def test_a_deployment_is_tried_before_it_acts(deployment: Path) -> None:
    """Weights of another policy, their digests right, and weights that are no numbers."""
    from deploy_trt.runtime import load_deployed
    from deploy_trt.runtime.manifest import load_manifest, save_manifest, write_digested
    from deploy_trt.runtime.weights import pack, unpack

    manifest = load_manifest(deployment)
    assert manifest.weights is not None
    tensors = unpack((deployment / manifest.weights.file).read_bytes())
    floats = {name for name, tensor in tensors.items() if tensor.dtype == np.float32}
    for factor, message in ((np.float32("nan"), "not finite"), (np.float32(-3), "another chunk than was recorded")):
        changed = {name: tensor * factor if name in floats else tensor for name, tensor in tensors.items()}
        info = write_digested(deployment, "weights", ".safetensors", pack(changed))
        probes = dict(np.load(deployment / manifest.probes.file)) | {"weights": np.array([info.sha256])}
        np.savez(deployment / "probes-new.npz", **probes)
        written = write_digested(deployment, "probes", ".npz", (deployment / "probes-new.npz").read_bytes())
        save_manifest(deployment, replace(manifest, weights=info, probes=written))
        with pytest.raises(UserError, match=message):
            load_deployed(deployment, require="ort-cpu")


@pytest.mark.slow
def test_graphs_read_no_file_beside_their_weights(
    deployment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph whose weights lie elsewhere must not find them in the current directory, nor garbage be a traceback."""
    from deploy_trt.runtime import Deployment
    from deploy_trt.runtime.manifest import WEIGHTS_LOCATION
    from deploy_trt.runtime.ort import OrtBackend

    read = Deployment.read(deployment)
    assert read.weights is not None
    (tmp_path / WEIGHTS_LOCATION).write_bytes(read.weights)
    monkeypatch.chdir(tmp_path)
    OrtBackend("ort-cpu", read.graphs, read.weights)
    with pytest.raises(CheckpointError, match="cannot be played"):
        OrtBackend("ort-cpu", read.graphs, None)
    with pytest.raises(CheckpointError, match="cannot be played"):
        OrtBackend("ort-cpu", {"policy": b"garbage"}, None)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["spec"].update(control_hz=0),
        lambda config: config["spec"].update(image_size=[1000000, 1000000]),
        lambda config: config["spec"].update(delta_dims=[9]),
        lambda config: config["statistics"]["action"]["std"].__setitem__(0, 0.0),
        lambda config: config["statistics"]["action"]["std"].__setitem__(0, -1.0),
        lambda config: config["statistics"]["state"]["mean"].__setitem__(0, 1e6),
        lambda config: config["statistics"].update(discrete_dims=[5]),
        lambda config: config["meta"].update(policy_version="../../x"),
        lambda config: config["meta"].update(policy_version=True),
        lambda config: config.update(weights="../model.safetensors"),
    ],
)
def test_numbers_of_a_policy_are_checked_though_it_is_sealed(policy: Path, change: Callable[[dict], None]) -> None:
    edit(policy / "config.json", change)
    with pytest.raises((CheckpointError, ConfigError)):
        kinds.read_policy(policy)


def test_a_digit_of_a_policy_is_noticed(policy: Path) -> None:
    whole = kinds.read_policy(policy)
    file = policy / "config.json"
    content = file.read_text()
    for match in list(re.finditer(r"\d", content))[::7]:
        place = match.start()
        file.write_text(content[:place] + str((int(content[place]) + 1) % 10) + content[place + 1 :])
        try:
            assert kinds.read_policy(policy) == whole, "the digit was behind what a float can tell"
        except CheckpointError:
            continue
    file.write_text(content)
    edit(file, lambda about: about.update(format_version=1))
    with pytest.raises(CheckpointError, match="format version 1, this program reads 2; make it anew"):
        kinds.read_policy(policy)


@pytest.mark.parametrize("part", ["critic", "world"])
def test_critics_and_world_models_have_digests_too(tmp_path: Path, part: str) -> None:
    make, read = {"critic": (kinds.make_critic, kinds.read_critic), "world": (kinds.make_world, kinds.read_world)}[part]
    make(tmp_path / part)
    edit(tmp_path / part / "config.json", lambda about: about.update(note=1), seal=False)
    with pytest.raises(CheckpointError, match="digest"):
        read(tmp_path / part)


def test_video_of_small_cameras_is_refused_and_kills_nothing(store: EpisodeStore, tmp_path: Path) -> None:
    from vla_rl.data.lerobot_export import export_lerobot

    with pytest.raises(StoreError, match="narrower than 32"):
        export_lerobot(store, tmp_path / "dataset", video=True)


def test_what_may_not_be_read_or_written_is_one_line(
    policy: Path, store: EpisodeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    shutil.copytree(policy, locked / "policy")
    (tmp_path / "file").write_text("x")
    locked.chmod(0)
    try:
        with without_override():
            for arguments in (
                ("train", "--resume", locked / "run"),
                ("train", "--config", "tiny", "--out", locked / "run"),
                ("export", locked / "policy", "--out", tmp_path / "out"),
                ("imagine", "train", locked / "run", "--out", tmp_path / "world"),
                ("corrector", locked / "run"),
                ("doctor", locked / "store"),
                ("finetune", "--data", store.path, "--out", locked / "run"),
                ("report", locked / "run"),
                ("rollout", locked / "policy", "--robot", "mock"),
                ("label", locked / "store"),
                ("sign", "--new-key", locked / "key.pem"),
            ):
                refused(capsys, *arguments)
    finally:
        locked.chmod(0o700)
    for arguments in (("finetune", "--data", store.path, "--out", tmp_path / "file"), ("doctor", tmp_path / "file")):
        refused(capsys, *arguments)


def test_folders_of_a_persons_own_and_damaged_records(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.core.version_watcher import versions
    from vla_rl.data.run_folder import RunFolder

    run = tmp_path / "run"
    shutil.copytree(policy, run / "policies" / "version_0003")
    for name in ("version_old", "version_", "version_x", "version_../x".replace("/", "_")):
        shutil.copytree(policy, run / "policies" / name)
    (run / "config.yaml").write_text("seed: 1\n")
    assert RunFolder(run).policy_versions() == [3]
    assert find_policy(run).version == 3
    assert [folder.name for _, folder in versions(run / "policies")] == ["version_0003"]
    for damage in ('{"evaluations": ', "[1]", "[" * 100_000, "\udcff"):
        (run / "summary.json").write_bytes(damage.encode("utf-8", "surrogateescape"))
        with pytest.raises(UserError, match="damaged"):
            RunFolder(run).read_summary()


@pytest.mark.slow
def test_backends_that_there_are_not(deployment: Path, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "zz" in refused(capsys, "export", policy, "--out", policy / "out", "--verify", "zz")
    assert not (policy / "out").exists()
    if importlib.util.find_spec("tensorrt") is None:
        assert "tensorrt" in refused(capsys, "export", deployment, "--verify", "trt")


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "a: &a [x]\nb: [*a", "seed: .inf", "seed: 2026-99-99", "seed: " + "9" * 6000]
)
def test_a_config_that_no_person_writes_is_one_line(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert "c.yaml" in refused(capsys, "train", "--config", tmp_path / "c.yaml", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_nobody_foresaw_is_a_line_and_with_debug_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vla_rl.data.doctor.check_settings", lambda _: 1 / 0)
    monkeypatch.setattr("vla_rl.data.doctor.no_store_at", lambda _: ZeroDivisionError("\x1b[2Jnobody\nforesaw it"))
    assert main(["doctor", "nowhere"]) == 3
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "\x1b" not in told
    assert main(["doctor", "nowhere", "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_the_hint_to_resume_stands_where_there_is_something_to_resume(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("vla_rl.data.doctor.diagnose", full)
    assert "--resume" not in refused(capsys, "doctor", "nowhere")
    monkeypatch.setattr("vla_rl.data.run_folder.RunFolder.open", full)
    assert "go on with --resume" in refused(capsys, "train", "--resume", "nowhere")


def test_train_offers_configs_that_it_takes() -> None:
    from vla_rl.core.config import load_config
    from vla_rl.core.config_files import OF_FINETUNE, config_file, config_names
    from vla_rl.training.config import RunConfig
    from vla_rl.training.finetune import FinetuneConfig

    for name in config_names():
        load_config(RunConfig, config_file(name))
    for name in OF_FINETUNE:
        load_config(FinetuneConfig, config_file(name))


def test_a_backup_that_may_not_be_written_to_is_checked(store: EpisodeStore) -> None:
    for path in (store.path, *store.path.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    shown = [(path, path.stat().st_mtime_ns) for path in sorted(store.path.rglob("*"))]
    with without_override():
        assert diagnose(store.path) == []
    assert [(path, path.stat().st_mtime_ns) for path in sorted(store.path.rglob("*"))] == shown


def test_training_reads_no_episode_that_was_rewritten(store: EpisodeStore, tmp_path: Path) -> None:
    """A zip whose checksums are right, with other actions in it, and one that claims more than there is."""
    from vla_rl.data.episode_file import write_file

    file = store.episodes_dir / "e1.zarr.zip"
    original = file.read_bytes()
    other = kinds.episode("e1", 1)
    write_file(replace(other, action_sent=other.action_sent * 2, action_policy=other.action_policy * 2), tmp_path / "x")
    with pytest.MonkeyPatch.context() as patch:
        digest = store.read_header("e1").digest
        patch.setattr("vla_rl.data.episode_file._digest", lambda *_: digest)
        write_file(replace(other, action_sent=other.action_sent * 2), tmp_path / "lying.zip")
    file.write_bytes((tmp_path / "lying.zip").read_bytes())
    with pytest.raises(StoreError, match="damaged"):
        FrameCache(store, tmp_path / "cache").refresh()
    file.write_bytes(original)
    FrameCache(store, tmp_path / "cache").refresh()


def test_finetune_refuses_before_it_copies(
    policy: Path, store: EpisodeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(policy / "config.json", lambda config: config["spec"].update(control_hz=10.0))
    out = tmp_path / "run"
    assert "control_hz=10.0" in refused(capsys, "finetune", "--data", store.path, "--policy", policy, "--out", out)
    assert not out.exists()


@pytest.mark.slow
def test_sigterm_saves_the_steps_since_the_last_checkpoint(store: EpisodeStore, tmp_path: Path) -> None:
    """And leaves no process, semaphore or traceback behind."""
    (tmp_path / "tiny.yaml").write_text(
        "steps: 100000\ncheckpoint_every: 100000\nlearning: {actor: {batch_size: 4}}\n"
        "policy: {horizon: 4, vision: {widths: [4], kernels: [4], strides: [2]},"
        " expert: {width: 16, layers: 1, heads: 2}}\n"
    )
    run = tmp_path / "run"
    options = ["--data", str(store.path), "--config", str(tmp_path / "tiny.yaml"), "--out", str(run)]
    command = [sys.executable, "-m", "vla_rl.cli.main", "finetune", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        metrics = run / "metrics.jsonl"
        while not (metrics.is_file() and metrics.stat().st_size):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=300)
    assert process.returncode == 143
    assert told.splitlines()[-1] == "vla-rl: terminated; what is saved is safe, go on with --resume"
    assert "Traceback" not in told
    assert "leaked" not in told
    assert "\r" not in told, "bars are for terminals"
    last = [json.loads(line)["step"] for line in metrics.read_text().splitlines()][-1]
    (checkpoint,) = (run / "checkpoints").glob("step_*")
    assert int(checkpoint.name.removeprefix("step_")) >= last


@pytest.mark.slow
def test_a_robot_refuses_what_its_owner_did_not_sign(
    deployment: Path, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deploy_trt.runtime import load_deployed
    from vla_rl.policies.folders import load_model

    pytest.importorskip("cryptography")
    owner, stranger = make_key(tmp_path / "owner.pem"), make_key(tmp_path / "stranger.pem")
    assert (tmp_path / "owner.pem").stat().st_mode & 0o077 == 0
    loads = ((deployment, lambda: load_deployed(deployment, require="ort-cpu")), (policy, lambda: load_model(policy)))
    for folder, load in loads:
        load()
        monkeypatch.setenv(TRUSTED, str(owner))
        with pytest.raises(CheckpointError, match="is not signed"):
            load()
        sign(folder, tmp_path / "stranger.pem")
        with pytest.raises(CheckpointError, match="does not name"):
            load()
        monkeypatch.setenv(TRUSTED, os.pathsep.join(map(str, (owner, stranger))))
        load()
        sign(folder, tmp_path / "owner.pem")
        monkeypatch.setenv(TRUSTED, str(owner))
        load()
        kinds.make_critic(folder / "critic")  # added behind the owner's back
        with pytest.raises(CheckpointError, match="was changed"):
            load()
        monkeypatch.delenv(TRUSTED)


def test_every_verb_can_be_debugged(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert "--debug" in capsys.readouterr().out


def test_tensors_of_a_checkpoint_are_verified(tmp_path: Path) -> None:
    kinds.make_checkpoint(tmp_path)
    file = next(tmp_path.glob("*/tensors.safetensors"))
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file({name: tensor * 2 for name, tensor in tensors.items()}, file)
    with pytest.raises(CheckpointError, match="can be read"):
        kinds.read_checkpoint(tmp_path)
