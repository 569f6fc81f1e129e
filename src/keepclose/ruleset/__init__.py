"""Selections of endpoints -> nftables table -> smallest safe change, as text; and a packet tracer.

In: the service ports of one node and address family, each with its selected endpoints, and a
listing of the table in the kernel. Out: nftables transactions. Pure: no I/O, no clock. This package
never chooses endpoints (`routing` does) and never writes to the kernel (`proxy` does). Use:

    ruleset = Ruleset(RulesetSettings(family="IPv4", node_name="n1", ...))
    ruleset.set_port(ServicePortKey.of(port), port, selection)      # port: a RoutedPort
    ruleset.set_port(key, None, None)                               # removes the port
    update = ruleset.reconcile(parse_listing(json))     # at start and after a failed write;
                                                        # TableListing() where there is no table yet
    update = ruleset.commit()                           # later: only what changed; None = nothing
    for text in update.phases: write(text)              # each text is one transaction, in order
    # more than a second after the last phase of that update:
    for text in ruleset.sweep(update.serial): write(text)
    ruleset.set_service_cidrs(...), ruleset.set_nodeport_ips(...)   # seen by the next commit
    ruleset.counted_by(slot)                            # what the counter of an element counts
    ruleset.model()                                     # the desired Table, for the tracer
    cleanup_text(settings)                              # removes the table, on request only

The caller must write the texts in the order in which they were returned, each all or nothing. If
one fails, drop the rest, list the table and `reconcile`. A live chain is never rewritten: a change
creates a chain with a new name (first phase) and switches the map elements to it (second phase).
Unused objects wait for `sweep`, which computes the deletions when they are due, so a chain, set or
element that came back into use meanwhile stays. A chain name ends in a fingerprint of the chain's
rules: after a restart `reconcile` recognises a correct chain by its name and leaves it alone.

With `pooled` settings plain ports (a cluster IP, equal weights, no affinity) have no chains of
their own: their endpoints are elements of one map, so that the time for a change does not grow with
the table. A long phase is split into several transactions; only their order matters.
"""

from __future__ import annotations

from keepclose.ruleset.commands import Transaction, Update
from keepclose.ruleset.listing import TableListing, listing_of, parse_listing
from keepclose.ruleset.names import ServicePortKey
from keepclose.ruleset.ruleset import Ruleset, cleanup_text
from keepclose.ruleset.settings import CountBy, DetectLocal, LocalTraffic, RulesetSettings
from keepclose.ruleset.tables import Counted, Table

__all__ = [
    "CountBy",
    "Counted",
    "DetectLocal",
    "LocalTraffic",
    "Ruleset",
    "RulesetSettings",
    "ServicePortKey",
    "Table",
    "TableListing",
    "Transaction",
    "Update",
    "cleanup_text",
    "listing_of",
    "parse_listing",
]
