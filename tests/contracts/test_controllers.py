"""Every registered controller keeps the laws of `thinwire.testing`: one plan on all ranks, out of what all have."""

import pytest

from helpers.cases import CONTROLLER_TEXTS
from thinwire import parse
from thinwire.testing import CONTROLLER_LAWS


@pytest.mark.parametrize("text", CONTROLLER_TEXTS)
@pytest.mark.parametrize("law", CONTROLLER_LAWS, ids=str)
def test_every_controller_keeps(law, text):
    law(parse(text))
