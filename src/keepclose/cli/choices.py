"""Words that options offer and that other packages define.

NB: they stand here a second time because loading their homes takes longer than --help may. Tests
hold that both agree.
"""

from __future__ import annotations

from enum import StrEnum


class DefaultSubsetting(StrEnum):
    """How Services that say nothing have their endpoints divided among zones."""

    RANDOM = "Random"
    PREFER = "Prefer"
    REQUIRE = "Require"


class SubsettingDefaults:
    """The limits of subsetting where nothing else is said."""

    STARTING_THRESHOLD = 3.0
    PADDING = 3
    OVERLOAD_THRESHOLD = 0.5


class TopologyMode(StrEnum):
    """How much is found out about node-level Services."""

    MANUAL = "Manual"
    SEMI_AUTO = "SemiAuto"
    AUTO = "Auto"


class Role(StrEnum):
    """The programs of a cluster."""

    APISERVER = "apiserver"
    CONTROLLER = "controller"
    PROXY = "proxy"


class Way(StrEnum):
    """At which address a Service is called from outside."""

    NODE_PORT = "node-port"
    LOAD_BALANCER = "load-balancer"


class LocalMode(StrEnum):
    """By what traffic of the node's own pods is known."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_PREFIX = "InterfaceNamePrefix"


class Writer(StrEnum):
    """How rules get into the kernel."""

    AUTO = "auto"
    LIBNFTABLES = "libnftables"
    NFT = "nft"


class Durability(StrEnum):
    """What a write survives once it is answered."""

    NORMAL = "normal"
    """The end of the process, in whatever way."""
    FULL = "full"
    """Also the end of the machine."""
