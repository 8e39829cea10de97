"""`thinwire scale`: what a method costs a worker as workers are added, by each exchange."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from thinwire.cli import options
from thinwire.cli.console import check_outputs, console, say
from thinwire.cli.options import check_command, record_path
from thinwire.cli.recorded import show_sections
from thinwire.errors import ConfigError
from thinwire.link import rate_of
from thinwire.report.page import write_page
from thinwire.report.record_file import Writer
from thinwire.scale.estimate import ScaleSetting
from thinwire.scale.scaled import SCALE, Scaled, scaled, sections
from thinwire.spec import parse


def scale(
    context: typer.Context,
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A method, such as 'memsgd(topk(0.01))'.")],
    workers: Annotated[
        str, typer.Option("--workers", "-n", help="Numbers with commas between, or 2..1024 for powers of two.")
    ] = "2..1024",
    rate: Annotated[str, typer.Option("--rate", help="Of every worker's link, each way.")] = "100mbit",
    latency: Annotated[float, typer.Option("--latency", help="Milliseconds that a message is on its way.")] = 0.1,
    message: Annotated[
        float, typer.Option("--message", help="Milliseconds of a core that sending and taking one costs.")
    ] = 0.05,
    parameters: Annotated[int, typer.Option("--parameters", help="Of the model.")] = 1_000_000,
    compute: Annotated[float, typer.Option("--compute", help="Milliseconds of a step without an exchange.")] = 30.0,
    least: Annotated[int, typer.Option("--least", help="Numbers of a share of the server's, at least.")] = 1024,
    convex: Annotated[
        int, typer.Option("--convex", help="Train a convex problem of so many numbers, too; 0: none.")
    ] = 0,
    steps: Annotated[int, typer.Option("--steps", help="Of that training.")] = 200,
    step_size: Annotated[float, typer.Option("--step-size", help="Of that training, over 1/L.")] = 0.1,
    out: options.Out = None,
    page: options.Page = None,
    force: options.Force = False,
    plugin: options.Plugin = None,
    debug: options.Debug = False,
) -> None:
    """Count what a worker sends, and estimate a step's time, for each exchange and number of workers.

    A dense ring, a gather (or adding up on the way, where messages can be), and a sharded server, where the rule has a
    second hop. Bytes are those of real messages; times are by arithmetic. With --convex, simulated workers train too:
    what a server's own compression costs.

    **Examples**

      thinwire scale 'memsgd(topk(0.01))' --workers 2..1024 --rate 100mbit

      thinwire scale 'memsgd(topk(0.04))' --workers 16,64,256 --convex 25600 --least 25 --page scale.html
    """
    setting = ScaleSetting(
        rule=str(parse(spec)),
        workers=counts(workers),
        parameters=parameters,
        rate=rate_of(rate),
        latency=latency / 1e3,
        message=message / 1e3,
        compute=compute / 1e3,
        least=least,
        numbers=convex,
        steps=steps,
        step_size=step_size,
    )
    check_command(page=page)
    record = record_path(out, SCALE)
    check_outputs(record, page, force=force)
    found: list[Scaled] = []
    with closing(Writer(record, SCALE, ["thinwire", *context.obj], force=force)) as writer:
        for one in scaled(setting):
            writer.add(one)
            found.append(one)
    show_sections(sections(found))
    say(console(), f"record: {record}")
    if page is not None:
        write_page(sections(found), page)
        say(console(), f"report: {page}")


def counts(text: str) -> tuple[int, ...]:
    """Numbers of workers: some with commas between, or all powers of two from one to another.

    >>> counts("3,5"), counts("2..16")
    ((3, 5), (2, 4, 8, 16))
    """
    low, dots, high = text.partition("..")
    if not dots:
        return tuple(options.integers(text, "--workers"))
    (first,), (last,) = options.integers(low, "--workers"), options.integers(high, "--workers")
    if not 2 <= first <= last:
        raise ConfigError(f"--workers 2..1024 takes all powers of two from 2 to 1024, got {text!r}")
    return tuple(count for count in (1 << power for power in range(1, last.bit_length())) if first <= count <= last)
