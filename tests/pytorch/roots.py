# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Roots of other Debian releases with their PyTorch: made once, kept in the user's cache."""
import os
import shutil
import subprocess
import tempfile

from harness.runner import Skip

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "rocecomm")
RELEASES = ["bookworm", "trixie"]  # older ones first
PACKAGES = "python3-torch,libprotobuf-c1,ca-certificates"

# A root of its own for one command: what is mounted goes with it.
ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mkdir -p "$1$2"
mount --bind "$2" "$1$2"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
root=$1
shift 2
exec chroot "$root" "$@"
"""


def this_release():
    """The codename of this machine's Debian; empty elsewhere."""
    with open("/etc/os-release", encoding="utf-8") as f:
        fields = dict(line.strip().split("=", 1) for line in f if "=" in line)
    return fields.get("VERSION_CODENAME", "") if fields.get("ID") == "debian" else ""


def make(release):
    """The folder of a release's root."""
    base = os.path.join(CACHE, f"debian-{release}")
    root = os.path.join(base, "root")
    if os.path.isdir(root):
        return root
    new = os.path.join(base, "new")
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(base, exist_ok=True)
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", release, new]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        shutil.rmtree(new, ignore_errors=True)
        raise Skip(f"no root of {release} can be made here: {done.stdout.strip()[-300:]}")
    os.rename(new, root)
    return root


def prefix(release):
    """What runs a command in a release's root; temporary files are the same inside."""
    return ["unshare", "-m", "--", "sh", "-c", ENTER, "sh", make(release),
            tempfile.gettempdir()]
