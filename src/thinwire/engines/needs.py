"""What a rule needs of its engine, checked before the first step."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from thinwire.channel import Channel
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import AttachError, OptimizerWarning
from thinwire.feedback import Need

FAR = 100.0
"""A fall of the learning rate from which on momentum and a memory in units of updates are warned of."""
BEYOND_ONE_BACKWARD = {
    Need.PREVIOUS: "a step here has one backward pass, at the present point. Simulate it (thinwire.simulate), or use "
    "ef21sgdm, which has no noise floor either",
    Need.FULL: "a step here sees mini-batches only. Simulate it (thinwire.simulate), or use ef21sgdm",
    Need.BROADCAST: "here every worker steps for itself and no model is sent. Use the rule within it, or simulate it "
    "(thinwire.simulate)",
}
"""What training with one backward pass a step cannot give, and why."""


IN_SIMULATION = {
    Need.STEP_SIZE: "pass optimizer= to the simulation, or step_sizes= to exchange",
    Need.MOMENTS: "pass each worker's (thinwire.moments) as moments= to step or exchange",
    Need.PREVIOUS: "pass each worker's as previous= to step or exchange",
    Need.FULL: "pass gradients of all samples as gradients in the rounds in which wants_full is true",
}
"""What whoever drives a simulation can give, and how."""


def check_agreement(channel: Channel, given: bool, where: str) -> None:
    """Refuse a rule whose workers are to agree before they send, where nobody adds up their sketches."""
    remedy = f"{where} send without asking first. Take topk in place of arctopk, or attach(ddp, rule, optimizer)"
    check_need(channel, Need.AGREEMENT, given, remedy)


def check_need(channel: Channel, need: Need, given: bool, remedy: str) -> None:
    """Refuse a rule that needs what is not given."""
    if need in channel.needs and not given:
        raise AttachError(f"{channel.rule} needs {need.value}: {remedy}")


def check_gives(channel: Channel, gives: Collection[Need]) -> None:
    """Refuse a rule that needs more than a simulation's driver says that it will give."""
    for need, remedy in IN_SIMULATION.items():
        check_need(channel, need, need in gives, f"{remedy}, and name it in gives=")


def check_one_backward(channel: Channel) -> None:
    """Refuse a rule that needs more than one backward pass a step, at the model's own parameters, can give."""
    for need, remedy in BEYOND_ONE_BACKWARD.items():
        check_need(channel, need, False, remedy)


def check_momentum(channel: Channel, step_sizes: StepSizes | None) -> None:
    """Refuse to apply momentum twice: in a rule, and in the optimizer beside it."""
    for name, rule in channel.rules.items():
        if rule.has_momentum and step_sizes is not None and step_sizes.keeps_gradients(name):
            raise AttachError(
                f"{rule} applies momentum itself, and the optimizer keeps gradients of {name!r} from step to step too: "
                "momentum would be applied twice. Use torch.optim.SGD with momentum=0, or leave momentum to SGD "
                "and use a rule without, such as memsgd(topk(0.01))"
            )


def warn_of_optimizer(channel: Channel, step_sizes: StepSizes | None, stacklevel: int) -> None:
    """Say what becomes of late gradients behind an optimizer that is not linear."""
    _warn_of_update(channel, step_sizes, stacklevel + 1)
    for name, rule in channel.rules.items():
        if rule.wants_linear and step_sizes is not None and step_sizes.is_adaptive(name):
            warnings.warn(
                f"{rule} hands over late what it did not send at once, for an optimizer whose step is rate times "
                f"gradient. The optimizer of {name!r} is adaptive, {step_sizes.optimizer_name}: it divides by a root "
                "of what it is given, and what was saved up looks to it like one huge gradient. Use "
                "memadam(topk(0.01)), which brings its own Adam, with torch.optim.SGD at the same learning rate; or "
                "outer steps (thinwire.attach_outer) with this optimizer inside; or vgc",
                OptimizerWarning,
                stacklevel=stacklevel,
            )
            return  # once: the others are told the same


def _warn_of_update(channel: Channel, step_sizes: StepSizes | None, stacklevel: int) -> None:
    """Say that a step of one length does not take a sum for what it is; EF21's result is an estimate, and no sum."""
    for name, rule in channel.rules.items():
        update = step_sizes.of_one_length(name) if step_sizes and Need.STEP_SIZE in rule.needs else None
        if update is not None:
            warnings.warn(
                f"{rule} hands over late, in one sum, what it did not send at once, and the update of {name!r}, "
                f"{update}, steps as far whatever it is given: what was saved up moves the model no further than one "
                "gradient. Use ef21sgdm(topk(0.05)), which hands over an estimate of the momentum, or an optimizer "
                "whose step is rate times gradient, such as torch.optim.SGD",
                OptimizerWarning,
                stacklevel=stacklevel,
            )
            return  # once: the others are told the same


def warn_of_decay(channel: Channel, step_sizes: StepSizes | None, fall: float) -> bool:
    """Say once that the learning rate has fallen so far that momentum keeps what a memory gives up; whether it did."""
    far = fall > FAR and step_sizes is not None and step_sizes.has_momentum and Need.STEP_SIZE in channel.needs
    if far:
        warnings.warn(
            f"the learning rate has fallen to 1/{fall:.0f} of its peak. {channel.rule} hands over what it remembers in "
            f"units of the present rate, up to {fall:.0f} times as large as it was, and an optimizer with momentum (or "
            "an adaptive one) keeps it for later steps. Call handle.flush() before the rate falls further, end the "
            "schedule at a hundredth of its peak, or use SGD without momentum, or ef21sgdm",
            OptimizerWarning,
            stacklevel=2,
        )
    return far
