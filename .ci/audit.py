"""Reads what pip-audit found, as JSON from stdin, and says what it is worth: 0 all is well, 1 not, 3 nobody can tell.

pip-audit itself calls packages that it could not look up no vulnerabilities, and with that all of them where the index
at hand is a mirror without advisories.
"""

from __future__ import annotations

import argparse
import json
import sys

CLEAN, VULNERABLE, UNKNOWN = 0, 1, 3


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--if-possible", action="store_true", help="exit with 0 where nobody can tell, but say so")
    arguments = parser.parse_args()
    try:
        packages = json.load(sys.stdin)["dependencies"]
    except ValueError:  # it ended before it had anything to say
        packages = []
    known = [package for package in packages if "vulns" in package]
    found = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, "
        f"mended in {', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for package in known
        for vulnerability in package["vulns"]
    ]
    for line in found:
        print(line)
    if found:
        print(f"{len(found)} known vulnerabilities: raise the pins in requirements/")
        return VULNERABLE
    if len(known) == len(packages) > 0:
        print(f"{len(known)} packages, no known vulnerability")
        return CLEAN
    print(
        f"NOT AUDITED: {len(packages) - len(known)} of {len(packages)} packages have no advisories here (see what "
        "pip-audit says above): run 'make audit' where the advisories can be reached"
    )
    return CLEAN if arguments.if_possible else UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
