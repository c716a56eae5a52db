"""Training: the autoencoder, then dynamics and heads on its latents.

Training is resumable. Everything random is keyed by (seed, purpose, step), and a checkpoint holds all else. On a CPU a
resumed training ends in the weights of an uninterrupted one, bit by bit. A bound of processor time trades that for a
promise of cost: the learning rate then follows the clock.

::

    FOLDER/autoencoder.checkpoint/  weights, average, optimizer, steps and processor seconds of the first stage
    FOLDER/dynamics.checkpoint/     and of the second
    FOLDER/metrics.jsonl            a line for every 50 steps
    FOLDER/config.json, weights-*.safetensors   the finished model
"""

import copy
import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from vla_rl.core.errors import CheckpointError
from vla_rl.core.json_files import reading
from vla_rl.core.metadata import read_weights, write_weights
from vla_rl.core.normalization import VectorStatistics
from vla_rl.core.progress import Progress, track
from vla_rl.core.signals import deferred_signals
from vla_rl.data.cache import FrameCache
from world_model.config import TrainingConfig, WorldModelConfig, WorldSpec
from world_model.model import VideoModel, load_world_model, save_world_model
from world_model.protocol import Observations
from world_model.windows import LatentEpisodes, background, draw_pictures

_FORMAT = "vla-rl-world-model-training"
LOG_EVERY_STEPS = 50
FINAL_RATE = 0.05
_STATISTICS_FRAMES = 512
_FAMILIAR_EPISODES, _FAMILIAR_SHARE = 64, 0.95
_SEEDS_APART = 1_000_003
_AUTOENCODER_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 0.01  # of matrices
_MAX_GRADIENT_NORM = 1.0
_BEGINNING_SHARE, _ENDING_SHARE = 0.15, 0.2  # of the windows, that begin or end where an episode does
logger = logging.getLogger(__name__)

type Loss = Callable[[int], tuple[Tensor, dict[str, float]]]


class ModuleTraining:
    """Optimizes one module in place, from its newest checkpoint in a folder to the end.

    Args:
        name: For files and progress.
        loss: Step -> (loss, logs); a function of the module's weights and the step alone.
        learning_rate: After the warm-up.
        cpu_seconds: Bound of processor time; 0: none.
        training: Further options.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        loss: Loss,
        folder: Path,
        steps: int,
        learning_rate: float,
        cpu_seconds: float,
        training: TrainingConfig,
    ) -> None:
        self.name, self.module, self._loss, self._folder = name, module, loss, folder
        self.steps, self.learning_rate, self.cpu_seconds, self.training = steps, learning_rate, cpu_seconds, training
        self.average = copy.deepcopy(module).requires_grad_(False)
        groups = [
            {"params": [p for p in module.parameters() if p.ndim >= 2], "weight_decay": _WEIGHT_DECAY},
            {"params": [p for p in module.parameters() if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
        self.step, self.cpu_s = 0, 0.0
        self._checkpoint = folder / f"{name}.checkpoint"
        if (self._checkpoint / "config.json").exists():
            self._load()

    @property
    def progress(self) -> float:
        """0 at the start, 1 at the end: by steps, or by processor time where that is further."""
        by_time = self.cpu_s / self.cpu_seconds if self.cpu_seconds else 0.0
        return max(self.step / max(self.steps, 1), by_time)

    def run(self, stop_after: int | None = None) -> None:
        """Train to the end, or for at most ``stop_after`` more steps. The module then holds the averaged weights."""
        self.module.train()
        last = self.steps if stop_after is None else min(self.steps, self.step + stop_after)
        started_s, before_s = time.process_time(), self.cpu_s
        shown = Progress(self.name, self.steps, "step", done=self.step)
        with deferred_signals() as asked_to_stop, shown as progress:
            while self.step < last and self.progress < 1:
                logs = self._update()
                self.cpu_s = before_s + time.process_time() - started_s
                ended = self.step >= last or self.progress >= 1
                losses = ""
                if self.step % LOG_EVERY_STEPS == 0 or ended:
                    self._log(logs)
                    losses = ", ".join(f"{name} {logs[name]:.4f}" for name in logs if name.endswith("loss"))
                progress.advance(losses)
                stop = asked_to_stop()
                if self.step % self.training.checkpoint_every == 0 or ended or stop:
                    self._save()
                if stop:
                    raise stop
        if self.progress >= 1:
            self.module.load_state_dict(self.average.state_dict())
        self.module.eval()

    def _update(self) -> dict[str, float]:
        rate = min(1.0, (self.step + 1) / max(self.training.warmup_steps, 1))
        rate = min(rate, FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * min(self.progress, 1.0))))
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate * rate
        loss, logs = self._loss(self.step)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), _MAX_GRADIENT_NORM, foreach=True)
        self._optimizer.step()
        self.step += 1
        decay = min(self.training.ema_decay, self.step / (self.step + 10.0))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.module.parameters()), 1.0 - decay)
            for ours, theirs in zip(self.average.buffers(), self.module.buffers(), strict=True):
                ours.copy_(theirs)
        return {"loss": float(loss.detach()), **logs, "gradient_norm": float(norm)}

    def _log(self, logs: dict[str, float]) -> None:
        record = {"stage": self.name, "step": self.step, "cpu_s": round(self.cpu_s, 2), **logs}
        with (self._folder / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps(record) + "\n")

    def _save(self) -> None:
        tensors = {f"module.{name}": value for name, value in self.module.state_dict().items()}
        tensors |= {f"average.{name}": value for name, value in self.average.state_dict().items()}
        for index, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        content = safetensors.torch.save({name: value.contiguous() for name, value in tensors.items()})
        about = {"format": _FORMAT, "format_version": 1, "step": self.step, "cpu_s": self.cpu_s}
        write_weights(self._checkpoint, "weights", content, about)

    def _load(self) -> None:
        anew = "remove it to begin this stage anew"
        try:
            about, content = read_weights(self._checkpoint, _FORMAT, 1)
        except CheckpointError as error:
            raise CheckpointError(f"{self._checkpoint} is damaged: {error}; or {anew}") from error
        with reading(self._checkpoint, anew):
            tensors = safetensors.torch.load(content)
            self.step, self.cpu_s = int(about["step"]), float(about["cpu_s"])
            self.module.load_state_dict(_under("module.", tensors))
            self.average.load_state_dict(_under("average.", tensors))
            moments: dict[int, dict[str, Tensor]] = {}
            for name, value in _under("optimizer.", tensors).items():
                index, _, key = name.partition(".")
                moments.setdefault(int(index), {})[key] = value
            groups: list[Any] = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": moments, "param_groups": groups})


def fit(
    module: nn.Module, loss: Callable[[], Tensor], name: str, steps: int, learning_rate: float, weight_decay: float
) -> None:
    """Train a module in place by AdamW in a few seconds, without checkpoints. The rate falls to 0 by a cosine."""
    optimizer = torch.optim.AdamW(module.parameters(), learning_rate, weight_decay=weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in track(range(steps), name, "step"):
        value = loss()
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        schedule.step()
    module.eval()


def train_world_model(
    config: WorldModelConfig, spec: WorldSpec, cache: FrameCache, folder: Path, device: str = "cpu"
) -> VideoModel:
    """Train a world model on the real episodes of a cache, or go on, and save it in the folder.

    Returns:
        The model in eval mode.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "config.json").exists():
        return load_world_model(folder, device)
    training = config.training
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = VideoModel(config, spec).to(device)
    model.autoencoder.background.copy_(background(cache, spec.cameras, config.seed))

    def draw_images(step: int) -> tuple[Tensor, dict[str, float]]:
        images = draw_pictures(cache, spec.cameras, config.seed, step, training.autoencoder_batch)
        return model.autoencoder.loss(images.to(model.device), keyed_generator(config.seed, step))

    def draw_windows(step: int) -> tuple[Tensor, dict[str, float]]:
        sizes = (training.dynamics_batch, training.window_frames)
        batch = data.draw(config.seed, step, *sizes, _ENDING_SHARE, _BEGINNING_SHARE)
        moved = type(batch)(*(getattr(batch, name).to(model.device) for name in batch.__dataclass_fields__))
        return model.dynamics.loss(moved, keyed_generator(config.seed, step))

    budget_s = training.cpu_seconds * training.autoencoder_share
    steps, rate = training.autoencoder_steps, _AUTOENCODER_LEARNING_RATE
    first = ModuleTraining("autoencoder", model.autoencoder, draw_images, folder, steps, rate, budget_s, training)
    first.run()
    sample = draw_pictures(cache, spec.cameras, config.seed, 0, _STATISTICS_FRAMES).to(device)
    with torch.no_grad():
        model.autoencoder.set_statistics(model.autoencoder.encode(sample))
    data = LatentEpisodes(cache, model.autoencoder)
    set_dynamics_statistics(model, data)
    left_s = max(training.cpu_seconds - first.cpu_s, 1.0) if training.cpu_seconds else 0.0
    steps, rate = training.dynamics_steps, training.dynamics_learning_rate
    ModuleTraining("dynamics", model.dynamics, draw_windows, folder, steps, rate, left_s, training).run()
    set_familiar(model, cache)
    save_world_model(folder, model)
    return model


@torch.no_grad()
def set_familiar(model: VideoModel, cache: FrameCache) -> None:
    """Give the autoencoder the strangeness that 95 % of real successes never reach, or of all episodes without a
    success. Failures may be strange by construction.
    """
    coder = model.autoencoder.eval()
    episodes = [episode for episode in cache.episodes if episode.success] or cache.episodes
    drawn = np.random.default_rng(model.config.seed).permutation(len(episodes))[:_FAMILIAR_EPISODES]
    highest = []
    for index in drawn:
        episode = episodes[index]
        frames = np.arange(episode.start, episode.start + episode.length)
        highest.append(coder.strangeness(Observations(cache, frames).pictures(coder.cameras).to(model.device)).max())
    coder.familiar.copy_(torch.stack(highest).quantile(_FAMILIAR_SHARE))


def set_dynamics_statistics(model: VideoModel, data: LatentEpisodes) -> None:
    """Means and standard deviations of the training data, once: they are part of the model."""
    latent_change, state_change = data.changes()
    dynamics = model.dynamics
    power = model.autoencoder.over_places(latent_change.square().mean((0, 1)).to(model.device))
    dynamics.latent_change_std.copy_(power.sqrt().clamp(min=1e-3))
    dynamics.state_mean.copy_(data.state.mean(0))
    dynamics.action_mean.copy_(data.action.mean(0))
    state_std, state_floor = data.state.std(0), _least_scale(data.state, "state")
    dynamics.state_std.copy_(state_std.clamp(min=state_floor))
    dynamics.action_std.copy_(data.action.std(0).clamp(min=_least_scale(data.action, "action")))
    change_std = state_change.square().mean(0).sqrt()
    finest = state_floor * (change_std.max() / state_std.max().clamp(min=1e-6)).clamp(min=1e-6)  # as fine as the state
    dynamics.state_change_std.copy_(change_std.clamp(min=finest))
    dynamics.servos.copy_(_least_squares(model, data))


def _least_scale(column: Tensor, name: str) -> Tensor:
    """Floor of each dimension's scale, [D], so that one that hardly moves is not blown up; never 0."""
    floor = torch.tensor(VectorStatistics.from_array(column.numpy(), name).floor)
    return torch.where(floor > 0, floor, 1e-3 * column.std(0).max().clamp(min=1e-6))


def _least_squares(model: VideoModel, data: LatentEpisodes) -> Tensor:
    """Return the linear map of `Dynamics.servos`, with a little ridge so that columns which never move do no harm."""
    dynamics, frame = model.dynamics, torch.arange(len(data.state))
    begins, ends = torch.zeros(len(frame), dtype=torch.bool), torch.zeros(len(frame), dtype=torch.bool)
    begins[data.start], ends[data.start + data.length - 1] = True, True
    motion = torch.where(begins[:, None], 0.0, data.state - data.state[(frame - 1).clamp(min=0)])
    columns = [(data.state - dynamics.state_mean.cpu()) / dynamics.state_std.cpu()]
    columns += [motion / dynamics.state_change_std.cpu()]
    columns += [(data.action - dynamics.action_mean.cpu()) / dynamics.action_std.cpu(), torch.ones(len(frame), 1)]
    known = torch.cat(columns, -1)[~ends].double()
    change = ((data.state[(frame + 1).clamp(max=len(frame) - 1)] - data.state) / dynamics.state_change_std.cpu())[~ends]
    ridge = 1e-4 * len(known) * torch.eye(known.shape[1], dtype=torch.float64)
    return torch.linalg.solve(known.T @ known + ridge, known.T @ change.double()).float()


def keyed_generator(seed: int, step: int) -> torch.Generator:
    """Return a generator on the CPU that depends on (seed, step) alone."""
    return torch.Generator().manual_seed((seed * _SEEDS_APART + step) % 2**63)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
