"""What worker processes do in the tests of `thinwire doctor`: one rank is not well."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thinwire import TorchDist, self_test
from thinwire.core import Program
from thinwire.integrations.fingerprints import fingerprint


def examine(driver: TorchDist, illness: str) -> self_test.GroupResult:
    """Every rank's Group; rank 1 has the illness."""
    with pytest.MonkeyPatch.context() as patch:
        if driver.world.rank == 1 and illness == "version":
            patch.setattr(self_test, "__version__", "0.0.9")
        if driver.world.rank == 1 and illness == "bit":
            run = driver.run

            def flip(program: Program[Any]) -> Any:
                found = run(program)
                if isinstance(found, list) and isinstance(found[0], torch.Tensor) and found[0].shape == (48, 40):
                    found[0].view(torch.int32)[3, 4] ^= 1
                return found

            patch.setattr(driver, "run", flip)
        if illness == "sums":  # on all ranks alike, so that replicas agree
            patch.setattr(
                self_test, "fingerprint", lambda tensors: fingerprint([tensor.mul_(1.1) for tensor in tensors])
            )
        return self_test.examine_group(driver)
