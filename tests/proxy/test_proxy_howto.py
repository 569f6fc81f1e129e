"""What the page about the proxy tells people to type works."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.testing.api_server import serving
from support.netproxies import HEALTH, RunningProxy, prepared
from support.nettopology import NodePlan, topology_or_skip
from support.proxies import cluster_of, plain

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "howto" / "proxy.md").read_text()


def blocks() -> list[list[str]]:
    """Return the commands of each example."""
    return [text.splitlines() for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]


def run(one: RunningProxy, line: str, data: Path) -> str:
    """Run a command of the page on the node and return what it prints; it must succeed."""
    command = line.replace("~/proxy-cluster", str(data))
    done = subprocess.run(
        one.node.namespace.command("bash", "-euc", command),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=180,
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done.stdout


def is_ready(one: RunningProxy) -> bool:
    """Return whether load balancers may send to the node and the rules are there."""
    try:
        return one.fetch("/healthz", HEALTH)[0] == 200 and " . tcp . 80 : goto " in one.rules()
    except OSError:
        return False


async def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """Each example runs on a node, and shows, writes and removes what the page says."""
    _, (_, start), looks, (dry_run, once, cleanup) = blocks()
    data = tmp_path / "data"
    with topology_or_skip((NodePlan("n1", "zone-a", 1),)) as bed:
        async with (
            serving(data, nodes=("n1",)) as api,
            cluster_of(api) as cluster,
            prepared(bed, cluster, tmp_path) as proxies,
        ):
            one = proxies["n1"]
            web = await cluster.add_service()
            await cluster.set_endpoints(plain(bed.pods[0].address, "zone-a", "n1"))
            command = start.replace("~/proxy-cluster", str(data))
            program, *arguments = command.split()
            with one.node.namespace.running([ROOT / program, *arguments], one.log):
                async with asyncio.timeout(180):
                    while not await asyncio.to_thread(is_ready, one):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                shown = [await asyncio.to_thread(run, one, line, data) for line in looks]
            health, status, details, metrics, rules = shown
            assert '"healthy":true' in health
            assert "default/web" in status
            assert '"mode": "Everywhere"' in details
            assert "kubeproxy_sync_proxy_rules_duration_seconds_bucket" in metrics
            assert f"{web.spec.cluster_ip} . tcp . 80" in rules
            await asyncio.to_thread(run, one, cleanup, data)
            assert one.rules() == ""
            written = await asyncio.to_thread(run, one, dry_run, data)
            assert f"cluster-ips {{ {web.spec.cluster_ip} }}" in written
            assert one.rules() == ""
            await asyncio.to_thread(run, one, once, data)
            assert web.spec.cluster_ip in one.rules()


def test_the_metrics_of_the_page() -> None:
    """Every metric of ours that there is stands on the page, with its labels, and no other."""
    metrics = ProxyMetrics()
    metrics.count_connections(tuple)
    metrics.count_unserved(tuple)
    rows = dict(re.findall(r"^\| `(keepclose_\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    ours = {
        name: family
        for family in metrics.registry.collect()
        if family.name.startswith("keepclose_")
        for name in [f"{family.name}_total" if family.type == "counter" else family.name]
    }
    assert set(rows) == set(ours)
    assert "`mode` and `ip_family`" in rows["keepclose_proxy_service_ports"]
    theirs = {one.name for one in metrics.registry.collect() if one.name.startswith("kubeproxy_")}
    known = re.findall(r"`(kubeproxy_\w+)\*?`", PAGE)
    assert [
        name
        for name in theirs
        if not name.startswith(tuple(known)) and f"{name}_total" not in known
    ] == []
