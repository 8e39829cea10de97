"""A host: the process of one rank, in a namespace of its own, that takes its turns as the laboratory says.

python -m thinwire.lab.host, with a job on the first line of its standard input, then one order a line, each answered
by a line. It ends when that input does: with the laboratory, however that ended.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist

from thinwire.exchange import Group, Link, emulated, exchange_of
from thinwire.lab.contender import Contender
from thinwire.lab.echo import Echo
from thinwire.lab.namespaces import address, carried, enter
from thinwire.lab.race import trained
from thinwire.lab.setting import LabSetting, rule_and_exchange
from thinwire.training.plugins import load_plugin
from thinwire.training.tasks import Task, load_task

PORT = 29_500
"""Of the rendezvous; the namespace has all ports to itself."""
ORPHANED = 3
Orders = Callable[[], dict[str, Any]]


def orders() -> Orders:
    """The next line of standard input; this process ends at once when there are no more, even in mid-step."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(ORPHANED)

    threading.Thread(target=read, daemon=True).start()
    return lambda: dict(json.loads(lines.get()))


def serve(job: Mapping[str, Any], take: Orders, answer: Callable[[dict[str, Any]], None]) -> None:
    """Join the others, prepare every method, and take turns for ever."""
    setting, rank = LabSetting.of_plain(job["setting"]), int(job["rank"])
    limit = timedelta(seconds=setting.timeout)
    dist.init_process_group("gloo", init_method=_place(job), rank=rank, world_size=setting.hosts, timeout=limit)
    task = load_task(setting.task, setting.data)
    link = Link(None) if setting.emulated else None
    contenders = {method: _contender(method, setting, task, rank, link) for method in setting.methods}
    dist.barrier()
    answer({"ready": True})
    while True:
        order = take()
        if link is not None:
            link.shape(*order["rates"])
        if order.get("train"):
            answer({"curve": trained(order["method"], setting, task)})
        else:
            answer(turn(contenders[order["method"]], order["steps"], order["before"], counts=link is None))


def _contender(method: str, setting: LabSetting, task: Task, rank: int, link: Link | None) -> Contender | Echo:
    if setting.codec is not None:
        carrier = exchange_of(rule_and_exchange(method)[1], lambda: emulated(Group(), link))
        return Echo(method, setting, task, carrier)
    return Contender(method, setting, task, rank, link)


def _place(job: Mapping[str, Any]) -> str:
    """Where ranks meet: in a network of their own, or where links are emulated, by a file of this machine."""
    if job["namespace"] is None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return f"file://{job['meeting']}"
    enter(job["namespace"])
    return f"tcp://{address(0)}:{PORT}"


def turn(contender: Contender | Echo, steps: int, before: int, *, counts: bool = True) -> dict[str, Any]:
    """So many steps after some that are not measured; seconds and bytes of all, by account and by the interface.

    A turn's bytes are counted from one barrier to the next: those of the barriers themselves are among them.
    """
    for _ in range(before):
        contender.step()
    dist.barrier()
    sent, on_wire, parts = contender.sent(), _carried() if counts else 0, dict(contender.seconds)
    start = time.perf_counter()
    for _ in range(steps):
        contender.step()
    seconds = time.perf_counter() - start
    dist.barrier()
    spent = {part: now - parts[part] for part, now in contender.seconds.items()} if contender.has_parts else {}
    passed = _carried() - on_wire if counts else None
    told = {"explained": contender.explained()} if isinstance(contender, Contender) else {}
    return {"seconds": seconds, "sent": contender.sent() - sent, "carried": passed, **spent, **told}


def _carried() -> int:
    return carried(Path("/proc/self/net/dev").read_text(encoding="utf-8"))


def _to(stream: TextIO) -> Callable[[dict[str, Any]], None]:
    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=stream, flush=True)

    return answer


def main() -> int:
    """Serve; a failure is the last answer."""
    answer = _to(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # whatever else is printed goes where errors go
    take = orders()
    try:
        job = take()
        torch.set_num_threads(1)
        for plugin in job["plugins"]:
            load_plugin(Path(plugin))
        serve(job, take, answer)
    except Exception as error:
        told = {"type": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
        answer({"error": told, "time": time.time()})
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    os._exit(status)  # torch's threads may abort a process that shuts down
