"""Every registered topology keeps the laws of `thinwire.testing`."""

import pytest

from helpers.cases import TOPOLOGY_TEXTS
from thinwire.catalog import Reader
from thinwire.testing import TOPOLOGY_LAWS


@pytest.mark.parametrize("text", TOPOLOGY_TEXTS)
@pytest.mark.parametrize("law", TOPOLOGY_LAWS, ids=str)
def test_every_topology_keeps(law, text):
    law(Reader(text).part(("topologies",)))
