"""What each kind of fault of a plan does to a world, and how it is mended.

**Invariants**

- A fault is told in the story when it begins and when it ends.
- After its time nothing of it is left but what it did.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.simulation.plan import Deed
    from tests.simulation.world import World


async def strike(world: World, fault: Deed) -> None:
    """Make a fault, and end it when its time is over."""
    words = f"{fault.kind} {fault.target}" + (f" {fault.other}" if fault.other else "")
    world.chronicle.tell("fault", f"{words} seconds={fault.seconds:.3f} strength={fault.strength:g}")
    await _FAULTS[fault.kind](world, fault)
    world.chronicle.tell("fault", f"{words}: over")


async def _kill(world: World, fault: Deed) -> None:
    await world.kill(fault.target)
    await world.rest(fault.seconds)
    world.start(fault.target)


async def _stop(world: World, fault: Deed) -> None:
    await world.stop(fault.target)
    await world.rest(fault.seconds)
    world.start(fault.target)


async def _freeze(world: World, fault: Deed) -> None:
    host = world.loop.hosts.get(fault.target)
    if host is None:
        return
    host.freeze()
    await world.rest(fault.seconds)
    host.thaw()


async def _cut(world: World, fault: Deed) -> None:
    world.loop.network.cut(fault.target, fault.other)


async def _partition(world: World, fault: Deed) -> None:
    world.loop.network.partition(fault.target, fault.other, fault.seconds)
    await world.rest(fault.seconds)


async def _half_open(world: World, fault: Deed) -> None:
    for end in world.loop.network.connections(fault.target, fault.other):
        world.loop.network.half_open(end)


async def _slow(world: World, fault: Deed) -> None:
    network = world.loop.network
    network.delay(fault.target, fault.other, 0.0, fault.strength)
    await world.rest(fault.seconds)
    network.delay(fault.target, fault.other, *world.latency)


async def _lose_request(world: World, fault: Deed) -> None:
    world.loop.network.lose_next(fault.target, fault.other, "request")


async def _lose_reply(world: World, fault: Deed) -> None:
    world.loop.network.lose_next(fault.target, fault.other, "reply")


async def _clock_jump(world: World, fault: Deed) -> None:
    world.skews[fault.target] += fault.strength
    host = world.loop.hosts.get(fault.target)
    if host is not None:
        host.clock.jump(timedelta(seconds=fault.strength))


async def _store_clock_jump(world: World, fault: Deed) -> None:
    world.store.set_clock(world.store.ahead + timedelta(seconds=fault.strength))


async def _store_restart(world: World, fault: Deed) -> None:
    await world.restart_store(fault.seconds, lost=0)


async def _store_loss(world: World, fault: Deed) -> None:
    await world.restart_store(fault.seconds, lost=int(fault.strength))


async def _failover(world: World, fault: Deed) -> None:
    await world.fail_over(int(fault.strength))


async def _store_full(world: World, fault: Deed) -> None:
    world.store.out_of_memory(on=True)
    await world.rest(fault.seconds)
    world.store.out_of_memory(on=False)


async def _store_readonly(world: World, fault: Deed) -> None:
    world.store.read_only(on=True)
    await world.rest(fault.seconds)
    world.store.read_only(on=False)


async def _store_loading(world: World, fault: Deed) -> None:
    world.store.loading(on=True)
    await world.rest(fault.seconds)
    world.store.loading(on=False)


async def _noscript(world: World, _fault: Deed) -> None:
    world.store.flush_scripts()


async def _evict(world: World, fault: Deed) -> None:
    world.forget_feed(fault.other)


async def _evict_key(world: World, fault: Deed) -> None:
    world.forget_key(fault.other)


async def _flush(world: World, _fault: Deed) -> None:
    world.forget_all()


async def _sink_mood(world: World, fault: Deed) -> None:
    world.sinks.mood(fault.target, fault.other)
    await world.rest(fault.seconds)
    world.usual_mood(fault.target)


async def _api_blank(world: World, fault: Deed) -> None:
    world.api.switches.blank = True
    await world.rest(fault.seconds)
    world.api.switches.blank = False


async def _api_expire(world: World, fault: Deed) -> None:
    world.api.switches.expire(pages=bool(fault.strength))


_FAULTS: Final[dict[str, Callable[[World, Deed], Awaitable[None]]]] = {
    "kill": _kill,
    "stop": _stop,
    "freeze": _freeze,
    "cut": _cut,
    "partition": _partition,
    "half_open": _half_open,
    "slow": _slow,
    "lose_request": _lose_request,
    "lose_reply": _lose_reply,
    "clock_jump": _clock_jump,
    "store_clock_jump": _store_clock_jump,
    "store_restart": _store_restart,
    "store_loss": _store_loss,
    "failover": _failover,
    "store_full": _store_full,
    "store_readonly": _store_readonly,
    "store_loading": _store_loading,
    "noscript": _noscript,
    "evict": _evict,
    "evict_key": _evict_key,
    "flush": _flush,
    "sink_mood": _sink_mood,
    "api_blank": _api_blank,
    "api_expire": _api_expire,
}
