"""`keepclose up` and `keepclose down` as processes: a whole cluster, and nothing left of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from keepclose.lab.cluster.data_dir import ClusterDirectory, holder_of
from support.commands.upcommands import (
    SMALL,
    Ground,
    ground_for,
    skip_without_packets,
    until,
    watching,
)

WRONG_PORT = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 99999}]}
"""


def test_a_cluster_comes_and_goes(tmp_path: Path) -> None:
    """It says how to use it, leads packets as it promises, and leaves nothing behind."""
    skip_without_packets()
    with ground_for(tmp_path / "home") as ground:
        said = ground.up().out
        assert [line.split()[1] for line in said.splitlines() if line.startswith("✓")] == [
            "API",
            "controller",
            "2",
            "demo",
        ]
        assert f"export KUBECONFIG={ground.directory}/kubeconfig" in said
        assert f" traffic --data-dir {ground.directory} demo-svc  # " in said
        assert ground.traffic()["failed"] == 0
        with watching(ground) as watcher:
            # The outside host, for each of two nodes itself and its clients, and five pods.
            assert watcher.watched == watcher.remaining() == 1 + 4 + 5
            down = ground.run("down")
            assert down.code == 0
            assert down.out.startswith(f"✓ stopped, its objects stay in {ground.directory}  ")
            assert ground.processes() == []
            until(lambda: watcher.remaining() == 0)
        # What was stored stays, since the directory was given by name.
        left = {path.name for path in ground.directory.iterdir()}
        assert "store.db" in left
        assert not left & {"lab.json", "lab.sock", "lab.lock"}
        assert ground.run("down").out == f"no cluster runs in {ground.directory}\n"


def test_a_cluster_comes_and_goes_without_utf_8(tmp_path: Path) -> None:
    """In the C locale every report of what was done can be written, in ASCII."""
    skip_without_packets()
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with ground_for(tmp_path / "home", env={**os.environ, **locale}) as ground:
        said = ground.up().out
        assert said.count("\n+ ") == 3
        drained = ground.run("lab", "drain", "n1")
        assert drained.code == 0
        assert drained.out.startswith("+ n1 is drained")
        shown = ground.run("traffic", "demo-svc", "--connections", "60")
        assert (shown.code, shown.err) == (0, "")
        down = ground.run("down")
        assert down.out.startswith("+ stopped")
        assert (said + drained.out + shown.out + down.out).isascii()


def test_nothing_survives_a_kill_of_the_first_process(tmp_path: Path) -> None:
    """The kernel ends the rest, and the next one finds its objects again."""
    skip_without_packets()
    with ground_for(tmp_path / "home") as ground:
        ground.up()
        with watching(ground) as watcher:
            assert watcher.remaining() == 10
            os.kill(ground.state["pid"], signal.SIGKILL)
            until(lambda: ground.processes() == [])
            until(lambda: watcher.remaining() == 0)
        ground.up("--manifest", "/dev/null")
        assert ground.traffic()["failed"] == 0


def test_everything_can_be_killed(tmp_path: Path) -> None:
    """Each program comes back by itself, and connections work again."""
    skip_without_packets()
    with ground_for(tmp_path / "home") as ground:
        ground.up()
        first = ground.state["pid"]
        fork_server = next(pid for pid in ground.processes() if _parent(pid) == first)
        programs = {pid for pid in ground.processes() if _parent(pid) == fork_server}
        # The API server, the controller, and the proxies of two nodes.
        assert len(programs) == 4
        for pid in programs:
            os.kill(pid, signal.SIGKILL)

        def are_back() -> bool:
            now = {pid for pid in ground.processes() if _parent(pid) == fork_server}
            return len(now) == 4 and not now & programs

        until(are_back)
        until(lambda: ground.run("traffic", "demo-svc", "--connections", "20").code == 0)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """In the foreground a signal of the terminal is enough, and the directory is removed."""
    skip_without_packets()
    with ground_for(tmp_path / "elsewhere") as ground:
        # Nobody names a directory: it is made in the home and removed with the cluster.
        env = {**ground.environment, "HOME": str(tmp_path)}
        del env["KEEPCLOSE_DATA_DIR"]
        home = tmp_path / ".keepclose"
        with subprocess.Popen(
            ground.command("up", *SMALL),
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("Ctrl-C stops it"):
                    break
            assert (home / "kubeconfig").exists()
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(30) == 0
        assert not home.exists()


def test_one_that_is_being_built_can_be_ended(tmp_path: Path) -> None:
    """Whoever builds it is told nothing worse than that it was stopped."""
    with ground_for(tmp_path / "home") as ground:
        building = subprocess.Popen(ground.command("up", *SMALL), env=ground.environment)
        until(lambda: holder_of(ClusterDirectory(ground.directory, is_kept=True)) is not None)
        assert ground.run("down").code == 0
        assert building.wait(30) == 0
        assert ground.processes() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_at_the_very_beginning(tmp_path: Path, number: signal.Signals) -> None:
    """Nothing is left even if the directory was claimed a moment ago."""
    env = {name: value for name, value in os.environ.items() if name != "KEEPCLOSE_DATA_DIR"}
    home = ClusterDirectory(tmp_path / ".keepclose")
    command = Ground(home.directory).command("up", *SMALL)
    process = subprocess.Popen(command, env={**env, "HOME": str(tmp_path)})
    try:
        until(lambda: holder_of(home) is not None)
        process.send_signal(number)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_dead_nursery_ends_the_cluster(tmp_path: Path) -> None:
    """What can start nothing any more does not stay as a shell."""
    skip_without_packets()
    with ground_for(tmp_path / "home") as ground:
        ground.up()
        first = ground.state["pid"]
        fork_server = next(pid for pid in ground.processes() if _parent(pid) == first)
        os.kill(fork_server, signal.SIGKILL)
        until(lambda: ground.processes() == [])
        log = (ground.directory / "logs" / "up.log").read_text()
        assert log.endswith("error: the process that starts programs has ended\n")


def test_two_at_once(tmp_path: Path) -> None:
    """The second is refused in one line, and the first runs on."""
    skip_without_packets()
    with ground_for(tmp_path / "home") as ground:
        ground.up()
        second = ground.run("up", "--detach", *SMALL)
        assert second.code == 2
        assert second.err.startswith(f"error: a cluster runs in {ground.directory} already")
        assert second.err.count("\n") == 1
        assert ground.traffic()["failed"] == 0


def test_objects_outlive_their_cluster(tmp_path: Path) -> None:
    """A cluster in a directory of its own goes on where the last one ended, with other gates."""
    skip_without_packets()
    with ground_for(tmp_path / "home") as ground:
        ground.up()
        assert ground.traffic()["mechanism"] == "PreferSameZone"
        ground.run("down")
        ground.up("--feature-gates", "ServiceTrafficDistribution=false", "--manifest", "/dev/null")
        # The controller takes its hints back as soon as it has started.
        until(lambda: len(ground.traffic()["rows"][0]["answered"]) == 2)
        assert ground.traffic()["mechanism"] == "no trafficDistribution"


def test_a_cluster_is_rolled_back_to_an_older_release(tmp_path: Path) -> None:
    """All programs take the gates of the release; the stored value stays and comes back."""
    skip_without_packets()
    with ground_for(tmp_path / "home") as ground:
        ground.up("--emulated-version", "1.36")
        assert ground.traffic()["mechanism"] == "PreferSameZone"
        assert ground.run("lab", "gates", "--emulated-version", "1.33").code == 0
        shown = ground.run("lab", "gates").out
        assert "controller emulates Kubernetes 1.33\n" in shown
        until(lambda: ground.traffic()["mechanism"] != "PreferSameZone")
        assert ground.traffic()["failed"] == 0
        refused = ground.run("lab", "gates", "ServiceTrafficDistribution=false")
        assert refused.code == 2
        assert "feature is locked to true" in refused.err
        assert ground.run("lab", "gates", "--emulated-version", "1.34").code == 0
        until(lambda: ground.traffic()["mechanism"] == "PreferSameZone")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: bad\nspec:\n  ports:\n"
            "  - {name: first, port: 80}\n  - name: second\n    port: 99999\n",
            "document 2, line 14",
            id="a value",
        ),
        pytest.param(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n",
            "document 2, line 7",
            id="a kind that is not served",
        ),
    ],
)
def test_what_the_server_refuses_is_shown_with_its_line(
    tmp_path: Path, text: str, want: str
) -> None:
    """The message names the file, the document and the line of the field."""
    file = tmp_path / "objects.yaml"
    first = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: fine\n---\n"
    file.write_text(first + text)
    with ground_for(tmp_path / "home") as ground:
        done = ground.run("up", "--detach", *SMALL, "--manifest", str(file))
    assert done.code == 2
    assert done.err.splitlines()[-1] == f"       in {file}, {want}"


@pytest.mark.parametrize(
    ("options", "text", "want"),
    [
        pytest.param(
            ("--feature-gates", "Nonsense=true"), "", "error: --feature-gates: unknown", id="gate"
        ),
        pytest.param(
            ("--emulated-version", "1.20"), "", "error: --emulated-version: '1.20'", id="version"
        ),
        pytest.param(("--zones", "0"), "", "error: --zones must be at least 1", id="zones"),
        pytest.param(("--manifest", "/none"), "", "error: --manifest /none: No such", id="file"),
        pytest.param(("--manifest", "-"), "a: [", "error: ", id="no YAML"),
        pytest.param(("--manifest", "-"), "kind: Pod", "error: Pod: apiVersion: Req", id="no kind"),
        pytest.param(
            ("--manifest", "-"), WRONG_PORT, "error: Service web: ", id="refused by the server"
        ),
    ],
)
def test_bad_input_leaves_nothing(
    tmp_path: Path, options: tuple[str, ...], text: str, want: str
) -> None:
    """One message, exit code 2, and no process and no directory."""
    directory = tmp_path / "home"
    with ground_for(directory) as ground:
        done = ground.run("up", "--detach", *SMALL, *options, text=text)
        assert done.code == 2
        assert done.err.startswith(want)
        assert "Traceback" not in done.err
        assert ground.processes() == []
        assert not (directory / "lab.sock").exists()


def test_a_taken_port(tmp_path: Path) -> None:
    """It is named, with what to do, and nothing is left."""
    with socket.socket() as taken, ground_for(tmp_path / "home") as ground:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = ground.run("up", "--detach", *SMALL, "--port", str(port))
        assert done.code == 2
        assert done.err.splitlines()[-1] == (
            f"error: cannot listen at 127.0.0.1 port {port}: Address already in use; "
            "choose another with --port, or 0 for any"
        )
        assert ground.processes() == []


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    """The path and the reason are told."""
    (tmp_path / "file").touch()
    with ground_for(tmp_path / "file" / "home") as ground:
        done = ground.run("up", "--detach", *SMALL)
        assert done.code == 2
        assert done.err.splitlines()[-1].endswith(
            "Not a directory; choose another directory with --data-dir"
        )


def test_a_full_disk(tmp_path: Path) -> None:
    """It is told in one line, and nothing keeps running."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    script = f'mount -t tmpfs -o size=64k tmpfs {tmp_path}; exec "$@"'
    with ground_for(
        tmp_path / "home", before=("unshare", "-m", "sh", "-c", script, "sh")
    ) as ground:
        done = ground.run("up", "--detach", *SMALL)
        assert done.code == 2
        want = "No space left on device; choose another directory with --data-dir"
        assert done.err.splitlines()[-1].endswith(want)
        assert "Traceback" not in done.err
        assert ground.processes() == []


def test_where_no_packets_can_be_sent(tmp_path: Path) -> None:
    """One line says so and why, everything but packets is there, and traffic is refused."""
    script = 'echo 0 > /proc/sys/user/max_net_namespaces; exec "$@"'
    without = ("unshare", "-Ur", "sh", "-c", script, "sh")
    probe = subprocess.run([*without, "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"this kernel has no user namespaces: {probe.stderr.decode()}")
    with ground_for(tmp_path / "home", before=without) as ground:
        done = ground.up()
        assert done.err.startswith("! no packets here: ")
        assert done.err.endswith("; the cluster runs without them\n")
        assert done.err.count("\n") == 1
        assert "2 zones, 2 nodes, no packets" in done.out
        refused = ground.run("traffic", "demo-svc")
        assert refused.code == 5
        assert refused.err.startswith("error: this cluster has no packets (")
        assert ground.run("lab", "status").code == 0


def test_without_root(tmp_path: Path) -> None:
    """A user without any rights gets the same cluster, with packets, in a user namespace."""
    skip_without_packets()
    plain = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    probe = subprocess.run([*plain, "unshare", "-Ur", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"this kernel has no user namespaces for everyone: {probe.stderr.decode()}")
    with ground_for(tmp_path / "home", before=plain) as ground:
        said = ground.up()
        assert said.err == ""
        assert "real packets (nftables)" in said.out
        assert ground.places()["user_namespace"] is True
        assert ground.traffic()["failed"] == 0
        assert ground.run("down").code == 0
        assert ground.processes() == []


def test_many_times_in_a_row(tmp_path: Path) -> None:
    """Nothing piles up: no process, no namespace, no file, however it ended."""
    skip_without_packets()
    directory = tmp_path / ".keepclose"
    # Nobody names a directory, so that it is to be removed.
    env = {name: value for name, value in os.environ.items() if name != "KEEPCLOSE_DATA_DIR"}
    ground = Ground(directory, env={**env, "HOME": str(tmp_path)})
    for ending in ("down", "down", "kill", "down"):
        assert ground.run_plainly("up", "--detach", *SMALL).code == 0
        with watching(ground) as watcher:
            assert watcher.remaining() == 10
            if ending == "down":
                assert ground.run_plainly("down").code == 0
                assert not directory.exists()
            else:
                os.kill(ground.state["pid"], signal.SIGKILL)
            until(lambda: watcher.remaining() == 0)
    assert list(tmp_path.iterdir()) == []
