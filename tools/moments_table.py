"""Make the table that `thinwire.moments.advise` uses from the folder of a run of `optimizer-moments`.

`python tools/moments_table.py FOLDER`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import thinwire

TABLE = Path(thinwire.__file__).parent / "optimizer_state" / "measured.json"


def make(folder: Path) -> Path:
    """Write the table and return its path."""
    result = json.loads((folder / "result.json").read_text())
    machine = result["machine"]
    about = {
        "command": result["command"].partition(" --data ")[0],
        "machine": f"{machine['processor']}, {machine['cores']} cores",
        "versions": result["versions"],
        "started": result["started"],
    }
    rows = ",\n".join(json.dumps(row) for row in result["measured"])
    TABLE.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{rows}\n]}}\n')
    return TABLE


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
