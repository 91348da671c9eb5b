"""How training processes end that never detach. `make exits` runs several hundred of them."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "exits.py"


def test_no_rank_dies_by_a_signal_of_its_own_when_it_ends_is_interrupted_or_loses_its_peer():
    counts = {"idle": 4, "interrupt-all": 6, "interrupt-one": 4, "error": 2, "silent": 1}
    options = [word for kind, count in counts.items() for word in (f"--{kind}", str(count))]
    ended = subprocess.run([sys.executable, str(TOOL), *options], capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{sum(counts.values())} runs, 0 at fault" in ended.stdout
