"""The ends of instances: by a call, by themselves, or because Amazon takes a spot instance back."""

import time

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance, StateReason
from moto.ec2.responses.instances import InstanceResponse

from tests.clusters.ec2.cloud import spot, world

USER_INITIATED = "Client.UserInitiatedShutdown"
INSTANCE_INITIATED = "Client.InstanceInitiatedShutdown"
INTERRUPTED = "Server.SpotInstanceTermination"
CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


class Ending(InstanceResponse):
    def terminate_instances(self) -> ActionResult:
        """A second time is as good as the first; a protected instance keeps all of them."""
        instances = self.ec2_backend.get_multi_instances_by_id(self._get_param("InstanceIds", []))
        self.error_on_dryrun()
        for instance in instances:
            if instance.disable_api_termination:
                message = f"The instance '{instance.id}' may not be terminated."
                hint = "Modify its 'disableApiTermination' instance attribute and try again."
                raise EC2ClientError("OperationNotPermitted", f"{message} {hint}")
        before = [instance.state for instance in instances]
        for instance in instances:
            shut_down(instance, USER_INITIATED, "User initiated shutdown")
        pairs = zip(instances, before, strict=True)
        return ActionResult({"TerminatingInstances": [_change(instance, previous) for instance, previous in pairs]})


def _change(instance: Instance, previous: str) -> dict[str, object]:
    return {
        "InstanceId": instance.id,
        "CurrentState": {"Code": CODES[instance.state], "Name": instance.state},
        "PreviousState": {"Code": CODES[previous], "Name": previous},
    }


def shut_down(instance: Instance, code: str, why: str) -> None:
    """Shut an instance down and terminate it later, unless it has ended."""
    here = world.get_world()
    if instance.state in world.ENDED:
        return
    if here.on_power_off:
        here.on_power_off(instance)
    world.become(instance, world.SHUTTING_DOWN)
    reason = StateReason(f"{code}: {why}", code)
    instance.state_reason = reason

    def terminate() -> None:
        instance.terminate()  # interfaces and volumes go; it gives a reason of its own
        world.become(instance, world.TERMINATED)
        instance.state_reason = reason
        here.gone[instance.id] = time.monotonic()
        spot.close_requests(instance)

    here.schedule(here.pending_s, terminate)


def interrupt(instance: Instance) -> None:
    """Amazon takes a spot instance back. The notice, two minutes before, is the machine's metadata service's."""
    shut_down(instance, INTERRUPTED, "Instance terminated due to Spot interruption")


def power_off(instance: Instance) -> None:
    """Terminate or stop an instance that shut itself down, as its launch requested."""
    if instance.instance_initiated_shutdown_behavior == "terminate":
        shut_down(instance, INSTANCE_INITIATED, "Instance initiated shutdown")
    elif instance.state not in world.ENDED:
        world.become(instance, world.STOPPED)
        instance.state_reason = StateReason(f"{INSTANCE_INITIATED}: Instance initiated shutdown", INSTANCE_INITIATED)
