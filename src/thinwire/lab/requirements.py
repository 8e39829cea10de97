"""What a laboratory requires of the machine: root, `ip` and `tc`, memory for the hosts, and a wire fast enough."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from torch import nn

import thinwire
from thinwire.channel import Channel
from thinwire.errors import BackendError, ConfigError
from thinwire.exchange import allreduce_bytes, owners_among
from thinwire.lab.setting import LabSetting, is_rule, rule_and_exchange
from thinwire.link import seconds_on, show_rate
from thinwire.training.admission import check_rules, needs_moments
from thinwire.training.config import rule_in
from thinwire.training.formatting import show_bytes, show_seconds
from thinwire.training.tasks import Task

PROCESS = 350e6
"""Bytes of a host with torch, its data and gloo, before any model. Measured of a whole host, what it shares with others
left out (x86-64, torch 2.13): 287 MB with 4 models of 55,018 parameters, 410 MB with 7 of 391,264; here 357 and 438."""
COPIES = 8
"""Of a model for each method: parameters, gradients, DDP's buckets, an optimizer's two moments, a rule's state."""
ECHOED = 2
"""Of a model whose messages were made once: nothing is kept but what is summed or sent."""
INSTALL = "apt install iproute2 (Debian, Ubuntu), dnf install iproute iproute-tc (Fedora), apk add iproute2 (Alpine)"


def check_machine(setting: LabSetting) -> None:
    """Refuse a machine that cannot hold a laboratory."""
    if sys.platform != "linux":
        raise ConfigError(f"thinwire lab is made of Linux network namespaces, and this is {sys.platform}: run it there")
    if setting.emulated:
        return
    if os.geteuid() != 0:
        raise ConfigError(
            f"thinwire lab makes network namespaces, which root alone may; this is user {os.geteuid()}. Run it as "
            "root: sudo env PATH=$PATH thinwire lab ...; without root, --emulated joins plain processes by emulated "
            "links, and `thinwire bench step` times the methods on the loopback"
        )
    shaped = any(cable.slowest is not None for cable in setting.cables)
    missing = [name for name in ("ip", *(["tc"] if shaped else [])) if shutil.which(name) is None]
    if missing:
        raise BackendError(f"thinwire lab needs the program {' and '.join(missing)}, of iproute2; run\n  {INSTALL}")


def check_fit(setting: LabSetting, task: Task) -> int:
    """The model's number of parameters; refuses methods, memory and rates that do not fit it."""
    model = task.model(0)
    numel = sum(parameter.numel() for parameter in model.parameters())
    check_rules([setting.config(method) for method in setting.methods if is_rule(method)], task)
    _check_exchanges(setting, model)
    _check_replay(setting, model)
    _check_memory(setting, numel, memory_available())
    _check_rates(setting, numel)
    return numel


def _check_exchanges(setting: LabSetting, model: nn.Module) -> None:
    """Refuse a rule that cannot travel as its method says."""
    for rule, exchange in map(rule_and_exchange, setting.methods):
        if exchange == "server":
            parameters, owners = dict(model.named_parameters()), owners_among(setting.hosts)
            Channel(thinwire.parse(rule), parameters, rank=0, size=setting.hosts, owners=owners)


def _check_replay(setting: LabSetting, model: nn.Module) -> None:
    for method in filter(is_rule, setting.methods):
        if setting.replay is not None and needs_moments(rule_in(rule_and_exchange(method)[0]), model):
            raise ConfigError(f"{method} needs second moments, which --replay does not compute: leave one of them out")


def memory_of(hosts: int, methods: int, numel: int, copies: int = COPIES) -> float:
    """Bytes that so many hosts take, each with a model for each method: an estimate."""
    return hosts * (PROCESS + methods * copies * 4 * numel)


def _check_memory(setting: LabSetting, numel: int, available: float) -> None:
    needed = memory_of(setting.hosts, len(setting.methods), numel, COPIES if setting.codec is None else ECHOED)
    if needed > available:
        most = int(available // (needed / setting.hosts))
        remedy = f"take at most {most} hosts" if most > 1 else "free some memory"
        raise ConfigError(
            f"{setting.hosts} hosts with {len(setting.methods)} models of {numel:,} parameters each take about "
            f"{show_bytes(needed)} of memory, and {show_bytes(available)} are free: {remedy}, or name fewer methods"
        )


def memory_available() -> float:
    """Bytes that the kernel could give to new processes."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def _check_rates(setting: LabSetting, numel: int) -> None:
    """A dense step must come to its end before the ranks give each other up."""
    sent = allreduce_bytes(4 * numel, setting.hosts)
    for rate in filter(None, (cable.slowest for cable in setting.cables)):
        if (seconds := seconds_on(rate, sent)) > setting.timeout:
            raise ConfigError(
                f"at {show_rate(rate)} one dense step of {setting.task} ({show_bytes(sent)} from each host) takes "
                f"{show_seconds(seconds)}, longer than ranks wait for each other ({setting.timeout:g} s): take at "
                f"least {show_rate(8 * sent / setting.timeout)}, or a longer --timeout"
            )
