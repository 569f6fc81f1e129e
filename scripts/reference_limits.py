"""The page about limits: what may be sent, held and waited for, and what exceeding it gets.

Each limit is a constant where it is held; here it gets words. The value in the page is read from
the constant, so the page cannot say another number. `LIMITS` takes one entry for each further one.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

SERVER: Final = "API server: requests"
OBJECTS: Final = "API server: objects"
WATCHES: Final = "API server: watches, history and connections"
CLIENT: Final = "Client, controller and proxy"
COMMANDS: Final = "Commands and lab"
_INTRODUCTIONS: Final = {
    SERVER: "Limits of one request. The last column is a kube-apiserver 1.36 with its defaults.",
    OBJECTS: "Limits of one object; nearly all are those of Kubernetes.",
    WATCHES: "Limits of history, waiting requests, connections and times.",
    CLIENT: "Limits of input from an API server, a node or an extension, none of which keepclose"
    " trusts.",
    COMMANDS: "Limits of files, options and pods of a lab.",
}


class Limit(NamedTuple):
    """A constant or the default of a field, what it limits, and what exceeding it gets."""

    section: str
    constant: str
    """Module below keepclose and name: apiserver.http.request_parser:MAX_BODY_BYTES."""
    unit: str
    what: str
    answer: str
    kubernetes: str = ""


SAME: Final = "the same"
_CONNECTIONS: Final = "apiserver.http.connection"
_INCOMING: Final = "apiserver.http.request_parser"
_STORE: Final = "apiserver.storage.store"
_PATCHES: Final = "apiserver.patch.json_patch"
_SLICES: Final = "model.endpointslice.validation"
_PAGES: Final = "runtime.pages"
LIMITS: Final = (
    Limit(SERVER, f"{_INCOMING}:MAX_BODY_BYTES", "bytes", "body of a request", "413", SAME),
    Limit(
        SERVER,
        f"{_INCOMING}:MAX_HEAD_BYTES",
        "bytes",
        "path, query and headers of a request",
        "431, connection closed",
        "1 MiB",
    ),
    Limit(
        SERVER,
        f"{_INCOMING}:MAX_HEADER_LINES",
        "count",
        "headers of a request, with its trailer",
        "431, connection closed",
        "no limit but that of the bytes",
    ),
    Limit(
        SERVER,
        f"{_INCOMING}:MAX_EXCESS_BYTES",
        "bytes",
        "sizes of chunks and trailer of a chunked body, beyond 18 bytes a chunk",
        "500, connection closed",
        SAME,
    ),
    Limit(
        SERVER,
        f"{_CONNECTIONS}:HEADER_SECONDS",
        "seconds",
        "time until the headers of a request are complete",
        "408, connection closed",
        SAME,
    ),
    Limit(
        SERVER,
        f"{_CONNECTIONS}:REQUEST_SECONDS",
        "seconds",
        "time until a request is complete",
        "408, connection closed",
        SAME,
    ),
    Limit(
        SERVER,
        f"{_CONNECTIONS}:MAX_WAITING",
        "count",
        "requests of one connection that wait for their answers",
        "the server reads no further ones until it has answered",
        "1, or 100 streams of HTTP/2",
    ),
    Limit(
        SERVER,
        f"{_CONNECTIONS}:MAX_WAITING_BYTES",
        "bytes",
        "bodies of requests of one connection that wait for their answers",
        "the server reads no further ones until it has answered",
        "a window of HTTP/2",
    ),
    Limit(
        SERVER,
        "apiserver.serving.options:_MAX_OPTIONS",
        "count",
        "options in a query",
        "400",
        "no limit but that of the headers",
    ),
    Limit(
        SERVER,
        "apiserver.serving.options:MAX_SELECTOR_VALUES",
        "count",
        "conditions and values of a `labelSelector` or `fieldSelector`",
        "400",
        "no limit but that of the headers",
    ),
    Limit(
        SERVER,
        "model.json_values:DEPTH_MAX",
        "count",
        "nesting of a body, of a patch and of the object that it gives",
        "400 `exceeded max depth`; 422 for a patch whose outcome is deeper",
        "10,000",
    ),
    Limit(
        SERVER,
        "apiserver.serving.request_bodies:YAML_NODES_MAX",
        "count",
        "values and keys of a YAML body, and those that aliases repeat",
        "400",
        "aliases by their share of the document",
    ),
    Limit(
        SERVER,
        "kube.yaml_nodes:NUMBER_CHARACTERS_MAX",
        "characters",
        "a number in YAML",
        "it is read as a string",
        "no limit but that of the body",
    ),
    Limit(
        SERVER,
        "model.quantities:QUANTITY_CHARACTERS_MAX",
        "characters",
        "a quantity, such as `100m`",
        "400",
        "no limit but that of the body",
    ),
    Limit(
        SERVER,
        "model.json_values:VALUES_MAX",
        "count",
        "values of a body of JSON or protobuf",
        "400 `exceeded max values`",
        "no limit but that of the body",
    ),
    Limit(
        SERVER,
        "kube.yaml_nodes:TAG_DIRECTIVES_MAX",
        "count",
        "`%TAG` directives of YAML",
        "400",
        "no limit but that of the body",
    ),
    Limit(
        SERVER,
        "apiserver.status_errors:MAX_CAUSES",
        "count",
        "causes that an answer names of an invalid object",
        "further ones are not named",
        "no limit",
    ),
    Limit(
        SERVER,
        "apiserver.status_errors:MAX_CAUSE_CHARACTERS",
        "characters",
        "text of these causes together, but for the last",
        "further ones are not named",
        "no limit",
    ),
    Limit(
        SERVER,
        "apiserver.schema.protobuf_wire:MAX_DEPTH",
        "count",
        "nesting of groups in a protobuf body",
        "400",
        "no limit but that of the body",
    ),
    Limit(
        SERVER,
        f"{_PATCHES}:MAX_OPERATIONS",
        "count",
        "operations of a JSON patch",
        "413",
        SAME,
    ),
    Limit(
        SERVER,
        f"{_PATCHES}:MAX_COPIED_BYTES",
        "bytes",
        "bytes that the copies of a JSON patch add up to",
        "422",
        SAME,
    ),
    Limit(
        SERVER,
        f"{_PATCHES}:MAX_COPIED_VALUES",
        "count",
        "values that the copies of a JSON patch add up to",
        "422",
        "no limit but that of the bytes",
    ),
    Limit(
        SERVER,
        f"{_PATCHES}:MAX_SHIFTED_ITEMS",
        "count",
        "items of lists that insertions and removals of a JSON patch move",
        "422",
        "no limit",
    ),
    Limit(
        SERVER,
        "apiserver.schema.findings:MAX_FINDINGS",
        "count",
        "unknown or duplicate fields that an answer names",
        "further ones are not named",
        SAME,
    ),
    Limit(
        SERVER,
        "apiserver.serving.responses:_MAX_CHARACTERS",
        "characters",
        "warnings of one answer",
        "warnings are cut",
        SAME,
    ),
    Limit(
        SERVER,
        "apiserver.registry.metadata:FIELD_MANAGER_MAX",
        "characters",
        "`fieldManager`",
        "422",
        SAME,
    ),
    Limit(
        OBJECTS,
        "apiserver.serving.writing:MAX_OBJECT_BYTES",
        "bytes",
        "an object as it is stored, after patching, with `managedFields`",
        "500 `etcdserver: request is too large`",
        SAME,
    ),
    Limit(
        OBJECTS,
        "model.metadata_validation:ANNOTATIONS_MAX_BYTES",
        "bytes",
        "annotations of an object",
        "422",
        SAME,
    ),
    Limit(
        OBJECTS,
        "apiserver.registry.metadata:OWNERS_MAX",
        "count",
        "`ownerReferences` of an object",
        "422",
        "no limit",
    ),
    Limit(
        OBJECTS,
        "apiserver.registry.core_kinds:MAX_BYTES",
        "bytes",
        "data of a ConfigMap",
        "422",
        SAME,
    ),
    Limit(
        OBJECTS,
        "apiserver.patch.managed_fields:MAX_UPDATE_MANAGERS",
        "count",
        "managers that own fields by updates",
        "the oldest ones are joined to one",
        SAME,
    ),
    Limit(OBJECTS, f"{_SLICES}:MAX_ENDPOINTS", "count", "endpoints of a slice", "422", SAME),
    Limit(OBJECTS, f"{_SLICES}:MAX_ADDRESSES", "count", "addresses of an endpoint", "422", SAME),
    Limit(OBJECTS, f"{_SLICES}:MAX_PORTS", "count", "ports of a slice", "422", SAME),
    Limit(OBJECTS, f"{_SLICES}:MAX_ZONE_HINTS", "count", "zones that hints name", "422", SAME),
    Limit(OBJECTS, f"{_SLICES}:MAX_NODE_HINTS", "count", "nodes that hints name", "422", SAME),
    Limit(
        OBJECTS,
        "model.service.policy_validation:TOPOLOGY_KEYS_MAX",
        "count",
        "`topologyKeys` of a Service",
        "422",
        "the field is gone since 1.22",
    ),
    Limit(
        WATCHES,
        f"{_STORE}:OBJECTS_MAX_BYTES",
        "bytes",
        "all objects together",
        "500 `database space exceeded`; deletes still work",
        "the same, by etcd",
    ),
    Limit(
        WATCHES,
        "apiserver.controllers.event_expiry:EVENT_SECONDS",
        "seconds",
        "age of an Event since its last write, or since the server started",
        "the Event is deleted",
        "the same, and a restart does not renew it",
    ),
    Limit(
        WATCHES,
        f"{_STORE}:_HISTORY",
        "count",
        "changes of a kind from which a watch can begin",
        "410 `Expired`: list again",
        "5 minutes of changes, as etcd is compacted",
    ),
    Limit(
        WATCHES,
        f"{_STORE}:HISTORY_BYTES",
        "bytes",
        "objects in the changes of a kind from which a watch can begin",
        "410 `Expired`: list again",
        "2 GiB, the quota of etcd",
    ),
    Limit(
        WATCHES,
        f"{_STORE}:TOTAL_HISTORY_BYTES",
        "bytes",
        "the same for all kinds together; the largest ones are shortened first",
        "410 `Expired`: list again",
        "2 GiB, the quota of etcd",
    ),
    Limit(
        WATCHES,
        f"{_STORE}:MAX_HISTORY_AGE",
        "seconds",
        "age of a change from which a watch can begin",
        "410 `Expired`: list again",
        "5 minutes",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.watching:_MAX_WAITING",
        "count",
        "changes that wait for a slow watcher",
        "the watch ends with 410",
        "a watcher that blocks the others is closed",
    ),
    Limit(
        WATCHES,
        "apiserver.storage.history:PENDING_BYTES",
        "bytes",
        "objects in the changes that wait for a slow watcher",
        "the watch ends with 410",
        "a watcher that blocks the others is closed",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.application:MAX_WATCHES",
        "count",
        "watches of one user; administrators are exempt",
        "429",
        "no limit",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.watching:MAX_FRAME",
        "bytes",
        "changes that are sent in one piece",
        "further ones go in the next piece",
        "one change a piece",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.fair_queue:MAX_QUEUED",
        "count",
        "large requests of one user that wait; administrators are exempt",
        "429",
        "by priority level and flow",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.fair_queue:_MAX_WAITING",
        "count",
        "small requests of one user that wait; administrators are exempt",
        "429",
        "by priority level and flow",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.http_messages:MAX_CONNECTIONS",
        "count",
        "open connections (`--max-connections`), or 100 fewer than files that may be open",
        "an idle one is closed; with none idle the newest is",
        "no limit but that of open files",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.http_messages:ConnectionLimits.per_user",
        "count",
        "of these, connections of one user",
        "an idle one of the user is closed; with none idle the newest is",
        "no limit",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.http_messages:ConnectionLimits.unauthenticated",
        "count",
        "of these, connections without valid credentials so far",
        "the oldest of them is closed",
        "no limit",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.http_messages:ConnectionLimits.unauthenticated_per_address",
        "count",
        "of these, connections without valid credentials from one address",
        "the oldest of them is closed",
        "no limit",
    ),
    Limit(
        WATCHES,
        "apiserver.http.server:HANDSHAKE_SECONDS",
        "seconds",
        "time until the TLS handshake is complete",
        "connection closed",
        "32 s",
    ),
    Limit(
        WATCHES,
        f"{_CONNECTIONS}:IDLE_SECONDS",
        "seconds",
        "time without a request on a connection",
        "connection closed",
        SAME,
    ),
    Limit(
        WATCHES,
        "apiserver.serving.http_messages:SOFT_HELD_BYTES",
        "bytes",
        "bodies that come in or are read slowly, of all clients together, with buffers of TLS",
        "connections that move less than 1 MiB/s are closed",
        "no limit",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.http_messages:HARD_HELD_BYTES",
        "bytes",
        "the same",
        "connections on which nothing moves for 0.25 s are closed",
        "no limit",
    ),
    Limit(
        WATCHES,
        "apiserver.http.response_writer:STALLED_SECONDS",
        "seconds",
        "time for which a client may read nothing of its answer or watch",
        "connection closed",
        "until TCP gives up",
    ),
    Limit(
        WATCHES,
        "apiserver.serving.watching:MIN_TIMEOUT_SECONDS",
        "seconds",
        "least time after which a watch without `timeoutSeconds` ends; twice that at most",
        "the watch ends",
        SAME,
    ),
    Limit(
        WATCHES,
        "apiserver.http.server:SERVER_STOP_SECONDS",
        "seconds",
        "time for connections to end after SIGTERM",
        "connection cut",
        "60 s",
    ),
    Limit(
        WATCHES,
        "apiserver.assembly:END_SECONDS",
        "seconds",
        "time for the process to end after SIGTERM",
        "the process is killed",
        "no limit of its own",
    ),
    Limit(
        CLIENT,
        "kube.watch.stream:MAX_LINE",
        "bytes",
        "one event of a watch",
        "the client ends the watch and lists the objects again",
        "no limit in client-go",
    ),
    Limit(
        CLIENT,
        "kube.transport.aiohttp_transport:CONNECT_S",
        "seconds",
        "time to connect to an API server",
        "an error that names the server; tried again later",
        "30 s in client-go",
    ),
    Limit(
        CLIENT,
        "kube.transport.aiohttp_transport:MAX_ANSWER_BYTES",
        "bytes",
        "an answer of an API server, unpacked",
        "an error that names the server; tried again later",
        "no limit in client-go",
    ),
    Limit(
        CLIENT,
        "kube.watch.stream:MAX_INITIAL_BYTES",
        "bytes",
        "all objects at the begin of a watch that streams a list",
        "the client ends the watch and lists the objects in pages",
        "no limit in client-go",
    ),
    Limit(
        CLIENT,
        "kube.client:MAX_PAGES",
        "count",
        "pages of one list",
        "an error that names the list; tried again later",
        "no limit in client-go",
    ),
    Limit(
        CLIENT,
        "kube.watch.reflector:MAX_NAMED_OBJECTS",
        "count",
        "unreadable objects of a kind that the log names in a row",
        "one a minute is named, with the number of those that were not",
        "-",
    ),
    Limit(
        CLIENT,
        "kube.transport.aiohttp_transport:MAX_FAILURE_BYTES",
        "bytes",
        "an answer with an error status",
        "an error that names the server; tried again later",
        "no limit in client-go",
    ),
    Limit(
        CLIENT,
        "kube.errors:MAX_WAIT_S",
        "seconds",
        "backoff that a server may request by `Retry-After`",
        "the client retries after that",
        "no limit in client-go",
    ),
    Limit(
        CLIENT,
        "kube.auth.exec_plugin:_LIMIT_S",
        "seconds",
        "time for an exec plugin to print credentials",
        "the plugin is killed, an error names it",
        "no limit in client-go",
    ),
    Limit(
        CLIENT,
        "kube.auth.exec_plugin:_MAX_BYTES",
        "bytes",
        "output of an exec plugin",
        "the plugin is killed, an error names it",
        "no limit in client-go",
    ),
    Limit(
        CLIENT,
        "webhook.admission:_MAX_BYTES",
        "bytes",
        "an AdmissionReview that the webhook reads",
        "413; the API server admits the slice without hints",
    ),
    Limit(
        CLIENT,
        f"{_PAGES}:MAX_PAGE_CONNECTIONS",
        "count",
        "connections to a server of pages or to the webhook, or a quarter of the files beyond 100"
        " that may be open",
        "the oldest one without an answer is closed, or else the longest idle one",
    ),
    Limit(
        CLIENT,
        f"{_PAGES}:PAGE_HEAD_SECONDS",
        "seconds",
        "time until the headers of a request to them are complete, and before that the TLS"
        " handshake",
        "connection closed",
    ),
    Limit(
        CLIENT,
        f"{_PAGES}:PAGE_REQUEST_SECONDS",
        "seconds",
        "time from then until the body is complete and the answer read",
        "connection closed",
    ),
    Limit(
        CLIENT,
        f"{_PAGES}:PAGE_IDLE_SECONDS",
        "seconds",
        "time without a request on a connection to them",
        "connection closed",
    ),
    Limit(
        CLIENT,
        f"{_PAGES}:MAX_PAGE_BYTES",
        "bytes",
        "incomplete requests and unread answers of all connections to one of them",
        "the connections on which nothing moves for the longest time are closed",
    ),
    Limit(
        CLIENT,
        f"{_PAGES}:PAGE_LOG_SECONDS",
        "seconds",
        "interval between two log lines about rejected clients, for each reason",
        "the next line has the number of those since the last",
    ),
    Limit(
        CLIENT,
        "model.acknowledgements:MAX_EXCEPTIONS",
        "count",
        "Services that a node names in its acknowledgement",
        "the acknowledgement counts as none",
    ),
    Limit(
        CLIENT,
        "model.zone_weights:MAX_WEIGHTS_BYTES",
        "bytes",
        "written weights of a Service, in an annotation of a slice",
        "nodes follow the hints; the controller does not write more",
    ),
    Limit(
        CLIENT,
        "heuristics.process:_MAX_LINE_BYTES",
        "bytes",
        "an answer of a custom heuristic",
        "the heuristic counts as failed, its Services get plain routing",
    ),
    Limit(
        CLIENT,
        "routing.heuristic_answers:MAX_MESSAGE",
        "characters",
        "a reason of a custom heuristic",
        "the text is cut",
    ),
    Limit(
        CLIENT,
        "ruleset.names:COMMENT_LIMIT",
        "characters",
        "names of objects in comments of nftables rules",
        "the comment is cut",
        SAME,
    ),
    Limit(
        COMMANDS,
        "system.files:_MAX_BYTES",
        "bytes",
        "a file, a pipe or standard input that a command reads",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "system.files:MAX_MANIFEST_BYTES",
        "bytes",
        "a manifest of `keepclose up`",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "system.files:MAX_SETTINGS_BYTES",
        "bytes",
        "a kubeconfig and the files that it names",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "model.json_values:DEPTH_MAX",
        "count",
        "nesting of a manifest or a kubeconfig",
        "exit code 2, with the line",
    ),
    Limit(
        COMMANDS,
        "kube.yaml_nodes:YamlLimits.repeated_nodes",
        "count",
        "values and keys that the aliases of a document repeat",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "simulate.csv.files:MAX_ZONES",
        "count",
        "zones in the header of a CSV file",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "simulate.csv.files:MAX_HEADER",
        "bytes",
        "the header of a CSV file",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "simulate.csv.files:MAX_RECORD",
        "bytes",
        "one record of a CSV file",
        "the record counts as bad and is skipped",
    ),
    Limit(
        COMMANDS,
        "simulate.csv.rows:LARGEST",
        "count",
        "nodes or endpoints in a cell of a CSV file",
        "the row counts as bad and is skipped",
    ),
    Limit(
        COMMANDS,
        "simulate.csv.demand:MAX_TRACE_BYTES",
        "bytes",
        "a CSV file of demand",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "simulate.csv.demand:MAX_DEMAND_ROWS",
        "count",
        "rows in a CSV file of demand",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "simulate.traces:MAX_STEPS",
        "count",
        "steps of a trace of demand",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "simulate.traces:MAX_TRACE_ZONES",
        "count",
        "zones of a trace of demand",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "simulate.demand_runs:MAX_RUN_ENDPOINTS",
        "count",
        "endpoints of a Service under a trace of demand",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "lab.cluster.programs:_MAX_NODES",
        "count",
        "nodes of a lab",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "lab.workloads.replicasets:MAX_PENDING",
        "count",
        "pods of a lab that are Pending",
        "no more are created; the condition `ReplicaFailure` says so",
    ),
    Limit(
        COMMANDS,
        "lab.cluster.control:_MAX_REQUEST_BYTES",
        "bytes",
        "a request to a running lab",
        "connection closed",
    ),
    Limit(
        COMMANDS,
        "lab.traffic.targets:MOST_CONNECTIONS",
        "count",
        "connections of `keepclose traffic` from each zone",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "cli.verify.command:MOST_OBSERVED_SECONDS",
        "seconds",
        "how long `keepclose verify` observes (`--observe`)",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "cli.dashboard.feed:MAX_STREAMS",
        "count",
        "browser windows that follow one `keepclose dashboard`",
        "503; the window says so and tries again",
    ),
    Limit(
        COMMANDS,
        "cli.dashboard.watched_cluster:MAX_SHOWN_EVENTS",
        "count",
        "Events that `keepclose dashboard` shows",
        "older ones are left out",
    ),
    Limit(
        COMMANDS,
        "advise.overview.service_pages:MAX_SHOWN_ENDPOINTS",
        "count",
        "endpoints of one Service that `keepclose dashboard` lists",
        "further ones are counted",
    ),
    Limit(
        COMMANDS,
        "lab.kubelet.pod_servers:MAX_HEADER_BYTES",
        "bytes",
        "headers of a request to a pod of the lab",
        "431, connection closed",
    ),
    Limit(
        COMMANDS,
        "accounting.flow_files:MAX_ROWS",
        "count",
        "rows of a file of flows, and series of an answer of Prometheus",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "accounting.flow_files:MAX_LINE_CHARACTERS",
        "characters",
        "a line of a file of flows or of an AWS flow log",
        "exit code 2, with the line",
    ),
    Limit(
        COMMANDS,
        "accounting.flow_files:MAX_NAME_CHARACTERS",
        "characters",
        "a name in a file of flows or a label of Prometheus",
        "exit code 2, with the line",
    ),
    Limit(
        COMMANDS,
        "accounting.flow_files:MAX_PERIODS",
        "count",
        "periods of a CSV file of flows",
        "all rows are of one period",
    ),
    Limit(
        COMMANDS,
        "accounting.cloud_logs:MAX_LOGGED_CONNECTIONS",
        "count",
        "connections of the flow logs of one `keepclose flows read`",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "accounting.gcp_logs:MAX_ARRAY_BYTES",
        "bytes",
        "an array of Google Cloud log entries",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "accounting.aws_logs:MAX_FIELDS",
        "count",
        "fields of an AWS flow log format",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "accounting.prices:MAX_ZONE_PAIRS",
        "count",
        "entries of a price table",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "accounting.prices:MAX_PRICE",
        "count",
        "a price of a gigabyte",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "cli.flow_sources:MAX_FLOWS_BYTES",
        "bytes",
        "an answer of a flow agent",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "demand.agent_pages:MAX_AGENT_PAGE_BYTES",
        "bytes",
        "an answer of a flow agent through the API server",
        "the agent is named in a note",
    ),
    Limit(
        COMMANDS,
        "demand.agent_pages:MAX_POD_LIST_BYTES",
        "bytes",
        "the list of flow agents",
        "exit code 4",
    ),
    Limit(
        CLIENT,
        "demand.sources:MAX_MEASURED_ROWS",
        "count",
        "rows of all flow agents that demand is measured with",
        "the agents beyond it are named and not used",
    ),
    Limit(
        CLIENT,
        "demand.rates:MAX_DEMAND_BYTES",
        "bytes",
        "a file of demand, and an answer of a Prometheus about demand",
        "it is not read; the shares stay until they are stale",
    ),
    Limit(
        CLIENT,
        "demand.sources:EXCHANGE_WITHIN_S",
        "seconds",
        "an answer of a flow agent or a Prometheus about demand",
        "the same",
    ),
    Limit(
        CLIENT,
        "demand.reader:READ_WITHIN_S",
        "seconds",
        "one reading of demand, with all flow agents",
        "the same",
    ),
    Limit(
        CLIENT,
        "routing.demand:MAX_RATE",
        "count",
        "the rate of a zone, a second",
        "the sample of the Service is not used",
    ),
    Limit(
        COMMANDS,
        "cli.flows_top:MAX_AGENT_ROWS",
        "count",
        "rows of all flow agents together",
        "the other agents are named in a note",
    ),
    Limit(
        COMMANDS,
        "cli.flow_sources:MAX_PROMETHEUS_BYTES",
        "bytes",
        "an answer of Prometheus",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "accounting.prometheus_answers:MAX_SAMPLES",
        "count",
        "samples of a series of Prometheus",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "accounting.prometheus_answers:MAX_LABELS_BYTES",
        "bytes",
        "the labels of a series of Prometheus",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "cli.flow_sources:MAX_UNPACKED_BYTES",
        "bytes",
        "the content of a compressed file of flows",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "cli.render.flow_reports:MAX_SHOWN_ROWS",
        "count",
        "rows of a table of flows or costs for people",
        "the rest is counted; `-o csv` has all",
    ),
    Limit(
        COMMANDS,
        "cli.replay.scenario_file:MAX_SCENARIO_BYTES",
        "bytes",
        "a scenario of `keepclose replay`",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "advise.replaying.scenario:MAX_REPLAY_S",
        "seconds",
        "the simulated time of a replay, and any time in a scenario",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "advise.replaying.scenario:MAX_REPLAY_EVENTS",
        "count",
        "events of a scenario",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "advise.replaying.scenario:MAX_REPLAY_REPLICAS",
        "count",
        "replicas that an event of a scenario asks for",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "advise.replaying.scenario:MAX_REPLAY_NODES",
        "count",
        "nodes that an event of a scenario adds or names",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "advise.replaying.scenario:MAX_AUTOSCALE_STEPS",
        "count",
        "numbers of replicas in one event of a scenario",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "advise.replaying.replayed_cluster:MAX_REPLAY_PODS",
        "count",
        "pods that a replay creates",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "advise.replaying.replayed_cluster:MAX_REPLAY_STEPS",
        "count",
        "what may happen in a replay, each retry of an eviction counted",
        "exit code 2",
    ),
    Limit(
        COMMANDS,
        "simulate.sweep_cluster:SCHEDULER_ANSWER_S",
        "seconds",
        "the connection to a Dask scheduler, or `--scheduler-timeout` if that is shorter",
        "exit code 4",
    ),
    Limit(
        COMMANDS,
        "simulate.sweep_cluster:WORKER_WAIT_S",
        "seconds",
        "a Dask scheduler without workers, or without an answer in a sweep (`--scheduler-timeout`)",
        "exit code 4",
    ),
    Limit(
        COMMANDS,
        "simulate.sweep:MOST_LOSSES",
        "count",
        "failures of a range of inputs on a Dask cluster",
        "exit code 2, with the last failure",
    ),
)


def describe_limits() -> str:
    """Return the page, a table for each section."""
    parts = []
    for section, introduction in _INTRODUCTIONS.items():
        rows = "\n".join(_row(limit) for limit in LIMITS if limit.section == section)
        has_peer = any(limit.kubernetes for limit in LIMITS if limit.section == section)
        peer, line = (" Kubernetes |", "---|") if has_peer else ("", "")
        head = f"| what | limit | beyond it |{peer}\n|---|---|---|{line}"
        parts.append(f"## {section}\n\n{introduction}\n\n{head}\n{rows}\n")
    return "\n".join(parts)


def value_of(limit: Limit) -> float:
    """Return the value of the constant."""
    module, _, name = limit.constant.partition(":")
    owner, _, field = name.partition(".")
    value: Any = getattr(importlib.import_module(f"keepclose.{module}"), owner)
    if field:
        # NB: a field of a struct is the limit where nothing else is set.
        value = getattr(value(), field)
    return float(value)


def _row(limit: Limit) -> str:
    has_peer = any(one.kubernetes for one in LIMITS if one.section == limit.section)
    peer = f" {limit.kubernetes or '-'} |" if has_peer else ""
    shown = show_value(value_of(limit), limit.unit)
    return f"| {limit.what} | {shown} | {limit.answer} |{peer}"


def show_value(value: float, unit: str) -> str:
    """Return a value with its unit as people write it."""
    if unit == "bytes":
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= size and value * 2 % size == 0:
                return f"{value / size:g} {name}"
        return f"{value:,g} bytes"
    if unit == "seconds":
        return f"{value / 60:g} min" if value >= 600 and value % 60 == 0 else f"{value:g} s"
    return f"{int(value):,}" + ("" if unit == "count" else f" {unit}")
