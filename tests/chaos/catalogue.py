"""All faults in the order of the table, and how often each strikes by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.chaos.faults import (
    clock,
    clocks_apart,
    cluster_failover,
    cluster_move,
    disk_full,
    failpoint,
    flush,
    flush_at_rest,
    held_back,
    kill,
    lost_reply,
    memory,
    pause,
    power_cut,
    sentinel_failover,
    sigterm,
    sinks,
    source,
    store_back,
    store_clock,
    store_freeze,
    store_full,
    store_kill,
    store_loading,
    store_network,
    store_parent,
    store_readonly,
    store_scripts,
    storm,
    versions,
    versions_sealed,
)

if TYPE_CHECKING:
    from tests.chaos.fault import Fault

_MODULES = (
    kill,
    failpoint,
    sigterm,
    pause,
    lost_reply,
    store_network,
    store_kill,
    power_cut,
    store_freeze,
    store_loading,
    store_readonly,
    store_scripts,
    store_full,
    disk_full,
    flush,
    store_parent,
    storm,
    cluster_failover,
    cluster_move,
    sentinel_failover,
    source,
    sinks,
    clock,
    clocks_apart,
    store_clock,
    store_back,
    flush_at_rest,
    memory,
    held_back,
    versions,
    versions_sealed,
)
FAULTS: Final[dict[str, Fault]] = {module.FAULT.name: module.FAULT for module in _MODULES}
ROWS: Final = [fault.row for fault in FAULTS.values()]
MOST: Final = {fault.name: fault.most for fault in FAULTS.values()}

USUAL: Final = dict.fromkeys(FAULTS, 5)
"""How often each fault strikes in a default run."""

_OF_CLUSTERS: Final = {"cluster-failover": 20, "slot-move": 20}
ACCEPTANCE: Final = dict.fromkeys(FAULTS, 10) | {
    "kill": 200,
    "failpoint": 52,
    "pause": 80,
    "redis-kill": 80,
    "held-back": 4,
    **_OF_CLUSTERS,
}
"""How often each fault strikes before a release."""
