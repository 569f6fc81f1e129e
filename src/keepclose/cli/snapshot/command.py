"""`keepclose snapshot`: writes one file with what the other commands read of a cluster.

Reads a live cluster, or files to reduce or anonymize them. The file is written as a whole or not at
all, and only its owner can read it. Nothing is written to a cluster.
"""

from __future__ import annotations

import gzip
import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keepclose.cli.exit import DEFAULT_DIR, DataDir, ExitCode, fail
from keepclose.cli.inputs.cluster_input import (
    AllNamespaces,
    ClusterFiles,
    NamespaceOption,
    show_gaps,
)
from keepclose.cli.options import Kubeconfig, KubeContext, choose_cluster
from keepclose.cli.render.output import echo_yaml, say
from keepclose.model.json_values import JsonObject

if TYPE_CHECKING:
    from keepclose.cli.inputs.gaps import Gap

_GZIP: Final = ".gz"
_YAML: Final = (".yaml", ".yml")
_FORMS: Final = ("json", "yaml", "yml")
"""What -o takes in other commands."""
_SALT_BYTES: Final = 32


def snapshot(
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Where to write: YAML if the name ends in .yaml or .yml, else JSON, compressed if "
            "it ends in .gz. Default: YAML on standard output.",
        ),
    ] = None,
    anonymize: Annotated[
        bool,
        typer.Option(
            "--anonymize",
            help="Replace names, labels and addresses, so that answers stay the same.",
        ),
    ] = False,
    salt: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="With --anonymize: the same text gives the same hashes again. Default: random, "
            "and stored nowhere.",
        ),
    ] = "",
    file: ClusterFiles = [],  # noqa: B006 - typer copies it
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
    namespace: NamespaceOption = "",
    all_namespaces: AllNamespaces = False,
    data_dir: DataDir = DEFAULT_DIR,
) -> None:
    """Write one file with what the other commands read of a cluster.

    The file has no Secrets, environments, commands, images or messages, and of annotations only
    those about topology and numbers of workload controllers. Every command takes it with -f. Exit
    codes: 0 written, 2 bad input, 3 nothing found, 4 no API server answers, 74 the file cannot be
    written.
    """
    if salt and not anonymize:
        fail("--salt: it has no effect without --anonymize")
    if namespace and all_namespaces:
        fail("--all-namespaces: name one namespace or all of them, not both")
    if output is not None and str(output) in _FORMS:
        fail(
            f"-o {output}: the file to write is named here, and its ending says the form",
            f"write -o cluster.{output}",
        )
    objects, gaps = _read(file, kubeconfig, context, data_dir, namespace)
    show_gaps(gaps)
    kept = _keep_allowed(objects, namespace)
    if not any(obj["kind"] == "Service" for obj in kept):
        where = f" in namespace {namespace}" if namespace else ""
        fail(f"there is no Service{where}, so nothing could be answered", code=ExitCode.NOTHING)
    if anonymize:
        from keepclose.cli.snapshot.anonymizing import Anonymizer

        secret = _derive_key(salt) if salt else secrets.token_bytes(_SALT_BYTES)
        anonymizer = Anonymizer(kept, salt=secret)
        kept = [anonymizer.replace(obj) for obj in kept]
    document: JsonObject = {"apiVersion": "v1", "kind": "List", "items": kept}
    if output is None:
        echo_yaml(document)
        return
    size = _write(output, document)
    say(f"{output}: {_count(kept)}; {size:,} bytes that only you can read", err=True)


def _read(
    files: list[str], kubeconfig: Path | None, context: str, data_dir: Path, namespace: str
) -> tuple[Iterable[JsonObject], tuple[Gap, ...]]:
    from keepclose.cli.snapshot.allowed_fields import SNAPSHOT_EXTRA, SNAPSHOT_VERSIONS

    if files:
        if kubeconfig or context:
            fail("--file: name files or a cluster, not both")
        from keepclose.cli.inputs.object_files import read_plain_files

        return read_plain_files(files, SNAPSHOT_VERSIONS), ()
    from keepclose.cli.inputs.live_objects import read_plain_objects

    cluster = choose_cluster(
        kubeconfig, context, data_dir, other="or name its objects in files with -f"
    )
    return read_plain_objects(cluster, namespace=namespace, kinds=SNAPSHOT_EXTRA)


def _keep_allowed(objects: Iterable[JsonObject], namespace: str) -> list[JsonObject]:
    from keepclose.cli.snapshot.allowed_fields import allowed_part

    kept = []
    for obj in objects:
        own = obj["metadata"].get("namespace", "")
        if own and namespace not in ("", own):
            continue
        if (part := allowed_part(obj)) is not None:
            kept.append(part)
    return kept


def _write(path: Path, document: JsonObject) -> int:
    """Write the document, and return the size of the file; an error ends the command."""
    import msgspec

    from keepclose.cli.render.output import render_yaml
    from keepclose.system.files import replace_file

    name = path.name.removesuffix(_GZIP)
    if name.endswith(_YAML):
        content = render_yaml(document).encode()
    else:
        content = msgspec.json.encode(document) + b"\n"
    if path.name.endswith(_GZIP):
        # NB: without a time, so that the same objects give the same file.
        content = gzip.compress(content, mtime=0)
    try:
        replace_file(path, content)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else ""
        fail(f"--output: {path}: {reason or error}", code=ExitCode.UNWRITABLE)
    return len(content)


def _derive_key(salt: str) -> bytes:
    """Return the key of a salt; it takes long on purpose, as a short salt could be guessed."""
    text = salt.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(text, salt=b"keepclose snapshot", n=1 << 14, r=8, p=1, dklen=_SALT_BYTES)


def _count(objects: Iterable[JsonObject]) -> str:
    counts = Counter(str(obj["kind"]) for obj in objects)
    return ", ".join(
        f"{count:,} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items()
    )
