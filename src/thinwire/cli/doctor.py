"""`thinwire doctor`: versions, kernels, backend, links and a self-test; under torchrun, of the actual process group."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .extras import INSTALL, find_missing
from .figures import add_json
from .parsers import SubParsers
from .plain_tables import print_table

if TYPE_CHECKING:
    from ..self_test import Finding


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser("doctor", help="is all well here? versions, links, self-test", description=__doc__)
    add_json(parser, "the table's figures")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """0 if all is well, 1 if something is wrong; every rank of a group says the same, rank 0 tells."""
    from ..drivers.rendezvous import init_from_env, is_torchrun
    from ..self_test import examine_group, examine_here

    if not is_torchrun():
        findings = [*machine_findings(), *examine_here()]
        return tell(findings, "this machine, with 2 processes", options.json)
    with init_from_env() as driver:
        group = examine_group(driver)
        if driver.world.rank:
            return 1 if group.wrong else 0
    findings = [*machine_findings(), *group.findings()]
    return tell(findings, f"a group of {os.environ['WORLD_SIZE']} ranks, as rank 0 sees it", options.json)


def machine_findings() -> list[Finding]:
    """What is installed here, for the library and for the laboratory."""
    from thinwire_lab.testbed.tools import examine_tools

    from ..self_test import Finding, examine_machine

    missing = find_missing()
    laboratory = (
        f"{', '.join(missing)} not installed; {INSTALL} brings what experiments need" if missing else "installed"
    )
    return [*examine_machine(), Finding("laboratory", laboratory), *examine_tools()]


def tell(findings: Sequence[Finding], where: str, file: Path | None) -> int:
    marks = {True: "✓", False: "✗", None: ""}
    rows = [(marks[finding.well], finding.what, finding.found) for finding in findings]
    print_table(("", "what", "found"), rows, f"thinwire doctor: {where}")
    wrong = [finding for finding in findings if finding.well is False]
    if any(finding.what == "advice" for finding in findings):
        print("The advice is a rule of thumb: model, batch and cores count as well. Try both.")
    for finding in wrong:
        print(f"✗ {finding.what}: {finding.found}")
    print("✗ Something is wrong." if wrong else "✓ All is well.")
    if file is not None:
        file.write_text(json.dumps({"well": not wrong, "findings": [f._asdict() for f in findings]}, indent=1) + "\n")
    return 1 if wrong else 0
