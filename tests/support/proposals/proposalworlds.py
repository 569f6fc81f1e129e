"""Nodes and pods that statements add to a running API server."""

from __future__ import annotations

from support.controllers import World


async def add_two_zones(cluster: World) -> None:
    """Add two zones of one node and one pod each."""
    for number, zone in enumerate(("zone-a", "zone-b"), start=1):
        await cluster.add_node(f"n{number}", zone)
        await cluster.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number}")


async def add_three_zones(cluster: World) -> None:
    """Add three zones of one node with four pods each."""
    for letter in "abc":
        await cluster.add_node(f"n-{letter}", f"zone-{letter}")
    for number in range(12):
        await cluster.add_pod(f"p{number}", f"n-{'abc'[number % 3]}", ip=f"10.0.0.{number + 1}")
