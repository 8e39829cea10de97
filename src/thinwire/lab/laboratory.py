"""The laboratory at work: hosts start on a network of their own, take turns at every rate, and are cleared away."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, final

from thinwire import errors
from thinwire.errors import ThinwireError
from thinwire.lab.block import Block, Trial
from thinwire.lab.namespaces import Namespaces, network, sweep
from thinwire.lab.race import Race, races
from thinwire.lab.requirements import check_fit, check_machine
from thinwire.lab.setting import Cable, LabSetting, chooses
from thinwire.training.plugins import LOADED
from thinwire.training.tasks import load_task

WARM_UP, SETTLING = 4, 1
"""Steps that are not measured: of a method's first turn (DDP cuts its buckets anew, PowerSGD begins), and of each."""
GRACE = 2.0
"""Seconds that hosts get to say what went wrong, once one has: the first to speak is seldom the cause."""
FOLLOWING = ("PeerLost", "RuntimeError", "DistBackendError")
"""Errors that mostly follow from another host's."""
TAIL = 15
ENDINGS = (signal.SIGTERM, signal.SIGHUP)
Answer = dict[str, Any]


def measure(setting: LabSetting, keep: Callable[[Block], None], tell: Callable[[str], None]) -> None:
    """Every method at every rate; `keep` gets the figures of each rate as soon as they are whole, and `tell` hears
    of each turn that was taken."""
    check_machine(setting)
    numel = check_fit(setting, load_task(setting.task, setting.data))
    if not setting.emulated:
        sweep()
    with _ending_in_order(), _network(setting) as net:
        for cable in (*setting.cables, Cable(None, None)):
            net.shape(cable)  # what the kernel cannot do is found before any host starts
        with Hosts(setting, net) as hosts:
            _take_turns(setting, net, hosts, numel, keep, tell)


def _network(setting: LabSetting) -> AbstractContextManager[Namespaces | Emulation]:
    return nullcontext(Emulation()) if setting.emulated else network(setting.hosts)


@final
class Emulation:
    """In place of a network: the rates that hosts are told with each turn, for their emulated links."""

    def __init__(self) -> None:
        self.rates: tuple[float | None, float | None] = (None, None)

    def of(self, rank: int) -> None:
        """No namespace is a host's own."""

    def shape(self, cable: Cable) -> None:
        """Give every host's link these rates, from the next turn on."""
        self.rates = (cable.up, cable.down)


def _take_turns(
    setting: LabSetting,
    net: Namespaces | Emulation,
    hosts: Hosts,
    numel: int,
    keep: Callable[[Block], None],
    tell: Callable[[str], None],
) -> None:
    hosts.answers()
    race = _race(setting, hosts, tell) if setting.train else None
    _warm_up(setting, hosts, tell)
    for cable in setting.cables:
        net.shape(cable)
        keep(replace(_block(setting, hosts, cable, numel, tell), race=race))


def turns(setting: LabSetting) -> int:
    """How often `measure` tells of one."""
    trained = sum(map(races, setting.methods)) if setting.train else 0
    choosing = len(list(filter(chooses, setting.methods))) * len(setting.cables)
    return trained + choosing + len(setting.methods) * (1 + len(setting.cables) * setting.rounds)


def _race(setting: LabSetting, hosts: Hosts, tell: Callable[[str], None]) -> Race:
    """Every method trained from the start. The wires are as they were made: unshaped, for no number depends on them."""
    curves: dict[str, Any] = {}
    for method in filter(races, setting.methods):
        curves[method] = hosts.train(method)
        tell(f"training · {method}")
    return Race.of(setting, curves)


def _warm_up(setting: LabSetting, hosts: Hosts, tell: Callable[[str], None]) -> None:
    for method in setting.methods:
        hosts.turn(method, 1, WARM_UP)
        tell(f"warming up · {method}")


def _block(setting: LabSetting, hosts: Hosts, cable: Cable, numel: int, tell: Callable[[str], None]) -> Block:
    """All methods at one rate, round after round."""
    for method in filter(chooses, setting.methods):
        hosts.turn(method, 1, setting.settle)
        tell(f"{cable} · {method} chooses")
    taken: dict[str, list[list[Answer]]] = {method: [] for method in setting.methods}
    for _ in range(setting.rounds):
        for method, rounds in taken.items():
            rounds.append(hosts.turn(method, setting.steps, SETTLING))
            tell(f"{cable} · {method}")
    trials = tuple(Trial.of(method, rounds, setting.steps) for method, rounds in taken.items())
    return Block.of(setting, cable, numel, trials)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """A polite request to end clears everything away, as Ctrl-C does."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # handlers belong to the main thread
        return
    before = {number: signal.signal(number, end) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@final
class Hosts:
    """One process for each rank. They end with the block, and with this process."""

    def __init__(self, setting: LabSetting, net: Namespaces | Emulation) -> None:
        self._setting, self._net = setting, net
        self._stack = ExitStack()
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Hosts:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="thinwire-")))
            stack.callback(self._end)
            for rank in range(self._setting.hosts):
                self._start(rank)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, rank: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self._log(rank).open("w") as log:
            # in a session of its own: Ctrl-C at the terminal is this process's to answer
            process = subprocess.Popen(
                [sys.executable, "-m", "thinwire.lab.host"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=environment, start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        setting, plugins = self._setting.plain(), list(map(str, LOADED))
        place = {"namespace": self._net.of(rank), "meeting": str(self._folder / "meeting")}
        self._say(rank, {"setting": setting, "rank": rank, "plugins": plugins, **place})

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                try:
                    if pipe is not None:
                        pipe.close()
                except OSError:  # what was still to be written has no reader any more
                    pass

    def turn(self, method: str, steps: int, before: int) -> list[Answer]:
        """So many measured steps of a method, after some that are not; every host's figures."""
        return self._order({"method": method, "steps": steps, "before": before})

    def train(self, method: str) -> Any:
        """Train a method from the start; host 0's figures on the way."""
        return self._order({"method": method, "train": True})[0]["curve"]

    def _order(self, order: Answer) -> list[Answer]:
        rates = self._net.rates if isinstance(self._net, Emulation) else None
        for rank in range(self._setting.hosts):
            self._say(rank, {**order, "rates": rates})
        return self.answers()

    def _say(self, rank: int, order: Answer) -> None:
        pipe = self.processes[rank].stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(order) + "\n")
            pipe.flush()
        except OSError:  # it is gone: its answer, which never comes, will tell
            pass

    def answers(self) -> list[Answer]:
        """What every host says next; raises what went wrong on one."""
        heard: dict[int, Answer | None] = {}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                assert process.stdout is not None
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            deadline = None
            while selector.get_map() and (deadline is None or time.monotonic() < deadline):
                for key, _ in selector.select(None if deadline is None else GRACE):
                    selector.unregister(key.fileobj)
                    heard[key.data] = self._hear(key.data)
                if deadline is None and any(map(_failed, heard.values())):
                    deadline = time.monotonic() + GRACE
        if any(map(_failed, heard.values())):
            raise self._trouble(heard)
        return [answer for rank, answer in sorted(heard.items()) if answer is not None]

    def _hear(self, rank: int) -> Answer | None:
        """A host's next line; None where it died."""
        pipe = self.processes[rank].stdout
        assert pipe is not None
        line = pipe.readline()
        return dict(json.loads(line)) if line else None

    def _trouble(self, heard: dict[int, Answer | None]) -> ThinwireError:
        """What happened first: a host's death, else the earliest error, one that is not about another host's end."""
        dead = [rank for rank, answer in sorted(heard.items()) if answer is None]
        if dead:
            code = self.processes[dead[0]].wait()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return ThinwireError(
                f"host {dead[0]} of {self._setting.hosts} {how}; the others were stopped and everything is cleared "
                f"away. Is there memory for so many hosts?\n{self._tail(dead[0])}".rstrip()
            )
        told = [(rank, answer) for rank, answer in heard.items() if answer is not None and _failed(answer)]
        rank, first = min(told, key=lambda each: (each[1]["error"]["type"] in FOLLOWING, each[1]["time"]))
        silent = [str(rank) for rank in range(self._setting.hosts) if rank not in heard]
        without = f"\nNo word came from host {', '.join(silent)}: stopped, or cut off?" if silent else ""
        return _rebuilt(rank, first["error"], without)

    def _log(self, rank: int) -> Path:
        return self._folder / f"host-{rank}.log"

    def _tail(self, rank: int) -> str:
        """The last lines of what a host printed."""
        return "\n".join(self._log(rank).read_text(errors="replace").splitlines()[-TAIL:])


def _failed(answer: Answer | None) -> bool:
    return answer is None or "error" in answer


def _rebuilt(rank: int, told: Answer, more: str) -> ThinwireError:
    """A host's error; one of ours keeps its type, whatever its constructor takes."""
    kind: Any = getattr(errors, told["type"], None)
    ours = isinstance(kind, type) and issubclass(kind, ThinwireError)
    error: ThinwireError = kind.__new__(kind) if ours else ThinwireError()
    error.args = (f"host {rank}: {'' if ours else told['type'] + ': '}{told['message']}{more}",)
    error.add_note(told["traceback"])
    return error
