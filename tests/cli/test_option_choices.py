"""Words that the command line offers are those that other packages understand."""

from __future__ import annotations

from enum import StrEnum
from typing import get_args, get_type_hints

import pytest

from keepclose.apiserver.assembly import ServerSettings
from keepclose.cli.exit import DEFAULT_DIR
from keepclose.cli.options import (
    DefaultSubsetting,
    DirectionOption,
    Durability,
    LocalMode,
    RoleOption,
    SubsettingDefaults,
    TopologyMode,
    WriterOption,
)
from keepclose.lab.cluster.data_dir import DEFAULT_DATA_DIR
from keepclose.lab.cluster.process_keeper import ROLES
from keepclose.lab.traffic.targets import Via
from keepclose.proxy.nft.select_writer import WriterName
from keepclose.proxy.settings import DetectLocalMode
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.subsets import Approach, SubsetOptions


@pytest.mark.parametrize(
    ("offered", "want_words"),
    [
        pytest.param(
            DefaultSubsetting,
            set(Approach) - {Approach.DEFAULT},
            id="a default for subsetting is anything but the default",
        ),
        pytest.param(TopologyMode, set(NodeLevelMode), id="detection of node-level Services"),
        pytest.param(RoleOption, set(ROLES), id="programs of a cluster"),
        pytest.param(
            DirectionOption,
            set(Via) - {Via.CLUSTER_IP},
            id="from outside a Service has all addresses but its cluster IP",
        ),
        pytest.param(LocalMode, set(DetectLocalMode), id="detection of local traffic"),
        pytest.param(WriterOption, set(get_args(WriterName)), id="ways into the kernel"),
        pytest.param(
            Durability,
            set(get_args(get_type_hints(ServerSettings)["synchronous"])),
            id="what a write survives",
        ),
    ],
)
def test_the_words_agree(offered: type[StrEnum], want_words: set[str]) -> None:
    """An option offers all that its package knows, and nothing else."""
    assert {choice.value for choice in offered} == {str(word) for word in want_words}


def test_commands_look_where_up_puts_the_cluster() -> None:
    """Without --data-dir, the commands that ask a cluster find the one that up runs."""
    assert DEFAULT_DIR == DEFAULT_DATA_DIR


def test_limits_of_subsetting_are_those_of_the_core() -> None:
    """What the options show as their default is what holds without them."""
    assert SubsetOptions() == SubsetOptions(
        start_per_zone=SubsettingDefaults.STARTING_THRESHOLD,
        padding=SubsettingDefaults.PADDING,
        overload_threshold=SubsettingDefaults.OVERLOAD_THRESHOLD,
    )
