"""Several processes that share every gradient step of one model: each takes some rows of the batch, gradients are added
up (`torch.distributed`: NCCL between GPUs, Gloo otherwise), and all take the same step of their own copy.

The learner's process is one of them and tells the others what to do; they know neither episodes nor algorithms.
"""

import atexit
import contextlib
import io
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, distributed, nn

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.processes import belong_to_parent, starting_children
from vla_rl.policies.trainable import PolicyBatch

AddUp = Callable[[nn.Module, Sequence[float]], list[float]]
_INTERFACE = "GLOO_SOCKET_IFNAME"
_WAIT_S = 600.0  # for one another; one that has died is noticed at once


@dataclass(frozen=True)
class Share:
    """One process's part of a batch.

    Attributes:
        batch: its rows.
        weight: of them, float [b].
        fraction: its rows of all.
    """

    batch: PolicyBatch
    weight: Tensor
    fraction: float

    @classmethod
    def of(cls, batch: PolicyBatch, weight: Tensor, rank: int, processes: int) -> Self:
        """Every ``processes``-th row from the ``rank``-th on."""
        count = len(weight)

        def own(column: Tensor) -> Tensor:
            # Cloned, for a view is sent with all that it is a view of; a column may have one row for all.
            return column[rank::processes].clone() if len(column) == count else column

        mine = own(weight)
        return cls(batch.map(own), mine, len(mine) / count)


class Team:
    """The processes, this one among them. A process has one team at a time (`team_of`); whoever uses it sends his model
    first.

    Args:
        processes: how many, at least two.
        device: of this process's model. On ``cuda`` process r computes on the r-th GPU.

    Raises:
        ConfigError: if there are fewer GPUs, the device is not the first of them, or this process belongs to a group
            of torch.distributed already.
        UserError: if one of them cannot be started.
    """

    def __init__(self, processes: int, device: torch.device) -> None:
        if device.type == "cuda" and device.index:
            raise ConfigError(
                f"device is {str(device)!r}; with actor.processes={processes} it must be 'cuda', the first"
            )
        check_gpus("actor.processes", processes, device)
        if distributed.is_initialized():
            raise ConfigError("this process belongs to a group of torch.distributed already; set actor.processes=1")
        self.processes, self.device = processes, device
        self.serves: object = None
        """Whose model they hold now."""
        self._members: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        # Kept until the end: NCCL looks into it again at the first sum.
        self._folder = tempfile.TemporaryDirectory(prefix="vla-rl-team-")
        meeting, context = Path(self._folder.name) / "group", multiprocessing.get_context("spawn")
        atexit.register(self.close)
        for rank in range(1, processes):
            ours, theirs = context.Pipe()
            arguments = (rank, processes, device.type, meeting, torch.get_num_threads(), theirs)
            member = context.Process(target=_serve, args=arguments, daemon=True)
            with starting_children():
                member.start()
            theirs.close()
            self._members.append((member, ours))
        with self._alive():
            self._wait()  # they take long to load torch, which is no reason to give up
            _join(0, processes, device.type, meeting)
            self._wait()

    def give(self, user: object, model: nn.Module, make: Any, state: dict[str, Any]) -> None:
        """Let all hold a model and the state of its training.

        Args:
            user: who trains it.
            model: as it is.
            make: called with the copy by each process, on its device; makes what takes `Share`s.
            state: for ``load_state_dict`` of what was made.
        """
        self._send([_packed((model, make, state))] * len(self._members))
        self.serves = user

    def hand_out(self, batch: PolicyBatch, weight: Tensor, step: int, learning_rate: float) -> Share:
        """Send each process its rows of a step; returns this one's, which must then call `add_up`."""
        shares = [Share.of(batch, weight, rank, self.processes) for rank in range(self.processes)]
        self._send([_packed((share, step, learning_rate)) for share in shares[1:]])
        return shares[0]

    def add_up(self, module: nn.Module, numbers: Sequence[float]) -> list[float]:
        """Sum the gradients of a module over all processes, in place, and some numbers.

        Raises:
            UserError: if a process has ended.
        """
        with self._alive():
            return add_up(module, numbers)

    def close(self) -> None:
        """End the other processes."""
        atexit.unregister(self.close)
        for _, connection in self._members:
            connection.close()
        for member, _ in self._members:
            member.kill()
            member.join()
        self._members, self.serves = [], None
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._folder.cleanup()

    def _wait(self) -> None:
        for _, connection in self._members:
            connection.recv()

    def _send(self, messages: Sequence[bytes]) -> None:
        with self._alive():
            for (_, connection), message in zip(self._members, messages, strict=True):
                connection.send_bytes(message)

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """What fails because another process has ended says so."""
        try:
            yield
        except (OSError, EOFError, RuntimeError) as error:
            for member, _ in self._members:
                member.join(1.0)
            codes = [member.exitcode for member, _ in self._members if member.exitcode is not None]
            if not codes:
                raise
            self.close()
            raise UserError(
                f"a process that shares the learner's batches has ended with code {codes[0]} (out of memory?); what is "
                "saved is safe, use --resume, or learn without (actor.processes=1)"
            ) from error


def check_gpus(option: str, processes: int, device: torch.device) -> None:
    """Raises ConfigError, which names the option, for more processes than GPUs where they are to learn on these."""
    if device.type == "cuda" and torch.cuda.device_count() < processes:
        raise ConfigError(
            f"{option} is {processes}, and there are {torch.cuda.device_count()} GPUs: one each is needed"
        )


_team: Team | None = None


def team_of(processes: int, device: torch.device) -> Team:
    """The running team, if it is one of so many processes on such devices and alive, or else a new one in its place."""
    global _team
    if _team is None or not _team._members or (_team.processes, _team.device) != (processes, device):
        if _team is not None:
            _team.close()
        _team = Team(processes, device)
    return _team


def add_up(module: nn.Module, numbers: Sequence[float]) -> list[float]:
    """Sum the gradients of a module over all processes of the group, in place, and some numbers. A parameter without a
    gradient anywhere has none afterwards.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    used = [float(parameter.grad is not None) for parameter in parameters]
    parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    told = parameters[0].new_tensor([*used, *numbers])
    flat = torch.cat([*(part.reshape(-1) for part in parts), told])
    distributed.all_reduce(flat)
    *parts, told = flat.split([*(part.numel() for part in parts), len(told)])
    found: list[float] = told.tolist()
    for parameter, part, seen in zip(parameters, parts, found, strict=False):
        if seen and parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        if parameter.grad is not None:  # copied, for it keeps the memory layout of its parameter
            parameter.grad.copy_(part.view(parameter.shape))
    return found[len(parameters) :]


def _join(rank: int, processes: int, device: str, meeting: Path) -> None:
    if device == "cuda":
        torch.cuda.set_device(rank)
    named = os.environ.get(_INTERFACE)
    os.environ[_INTERFACE] = "lo"  # they are all on this machine
    try:
        distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=_WAIT_S),
        )
    finally:
        os.environ.pop(_INTERFACE)
        if named is not None:
            os.environ[_INTERFACE] = named


def _serve(rank: int, processes: int, device: str, meeting: Path, threads: int, connection: Connection) -> None:
    """In a process of its own: takes its part in every step until the learner has ended."""
    belong_to_parent()
    torch.set_num_threads(threads)
    connection.send("loaded")
    _join(rank, processes, device, meeting)
    connection.send("joined")
    here = torch.device(device, rank) if device == "cuda" else torch.device(device)
    worker: Any = None
    while True:
        try:
            packed = connection.recv_bytes()
        except EOFError:
            os._exit(0)  # torch's own end waits for the group, of which the learner has gone
        # Of its own parent, not of a file.
        first, *others = torch.load(io.BytesIO(packed), map_location=here, weights_only=False)
        if isinstance(first, Share):
            worker.step(first, *others, rank, add_up)
        else:
            make, state = others
            worker = make(first)
            worker.load_state_dict(state)


def _packed(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
