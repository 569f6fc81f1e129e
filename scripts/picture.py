"""Make the picture in the README from a real run: docs/pictures/traffic.svg, or the file named.

Starts a cluster in a directory of its own, runs the commands in it, draws what they print in the
colours of a terminal, and stops the cluster. Nothing in the picture is written by hand.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "traffic.svg"
TRAFFIC = "keepclose traffic demo-svc"
PATCH = """kubectl patch service demo-svc -p '{"spec":{"trafficDistribution":null}}'"""
# A command, and what tells that its output is not yet of the state to be shown.
SCENES = ((TRAFFIC, ""), (PATCH, ""), (TRAFFIC, "in zone 100.0 %"))
PATIENCE_S = 60.0
COLUMNS = 90

# Rich's own one loads fonts from elsewhere, and cuts every line at its height.
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font: bold 18px sans-serif; }}
{styles}
</style>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def run(command: str, unwanted: str, environment: dict[str, str]) -> str:
    """Return what a command prints, tried again while that is unwanted or the command fails."""
    end = time.monotonic() + PATIENCE_S
    while True:
        done = subprocess.run(  # noqa: S603 - the commands are those of this file
            shlex.split(command), capture_output=True, text=True, check=False, env=environment
        )
        plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        if done.returncode == 0 and not (unwanted and unwanted in plain):
            return done.stdout
        if time.monotonic() > end:
            sys.exit(f"picture: {command}: exit code {done.returncode}\n{plain}{done.stderr}")
        time.sleep(0.5)


def draw(scenes: list[tuple[str, str]]) -> str:
    """Return the picture of commands and what they printed."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        highlight=False,
    )
    for number, (command, output) in enumerate(scenes):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(output.rstrip("\n")))
    svg = console.export_svg(
        title="where connections to demo-svc go",
        code_format=TEMPLATE,
        font_aspect_ratio=0.6,
        unique_id="k",
    )
    svg = re.sub(r' clip-path="[^"]*"', "", svg)
    # The ends of lines are drawn as texts of their own.
    svg = re.sub(r"<text [^>]*>\n</text>", "", svg).replace("</text><text", "</text>\n<text")
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def main() -> None:
    """Run the commands in a cluster and write the picture."""
    if shutil.which("kubectl") is None:
        sys.exit("picture: kubectl is not installed")
    target = Path(sys.argv[1]) if sys.argv[1:] else PICTURE
    with tempfile.TemporaryDirectory() as name:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "KEEPCLOSE_DATA_DIR": name,
            "KUBECONFIG": f"{name}/kubeconfig",
            "COLUMNS": str(COLUMNS),
            "FORCE_COLOR": "1",
            "TERM": "xterm-256color",
        }
        run("keepclose up --detach --port 0", "", environment)
        try:
            outputs = [(command, run(command, not_yet, environment)) for command, not_yet in SCENES]
        finally:
            run("keepclose down", "", environment)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(outputs))


if __name__ == "__main__":
    main()
