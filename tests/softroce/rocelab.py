# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The laboratory of tests/harness inside the guest: its hosts have RoCE devices.

Same interface as harness.lab; what makes the hosts is inside/hosts. One laboratory at a time, since
the hosts of the guest have names.
"""
import os
import re
import subprocess

from harness.lab import Host, Lab, LabError, wait_for
from harness.runner import Context

HOSTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside", "hosts")
ROCE_PORT = 4791


class RoceHost(Host):
    """A host of the guest."""

    def __init__(self, lab, number):  # pylint: disable=super-init-not-called
        letter = "ABCDEFGH"[number]
        self.lab = lab
        self.number = number
        self.name = "host" + letter
        self.address = f"10.47.0.{number + 1}"
        self.devices = [f"roce{letter.lower()}{rail}" for rail in range(lab.rails)]
        with open(f"/run/softroce/{self.name}.pid", encoding="ascii") as f:
            self.pid = int(f.read())

    def prefix(self):
        return ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "--"]

    def rail_address(self, rail=0):
        return f"10.47.{rail}.{self.number + 1}"

    def port(self, device, name):
        """A file of /sys/class/infiniband/DEVICE/ports/1, as the host sees it; "" if there is none."""
        path = f"/proc/{self.pid}/root/sys/class/infiniband/{device}/ports/1/{name}"
        try:
            with open(path, encoding="ascii") as f:
                return f.read().strip()
        except OSError:  # also that of an empty entry
            return ""

    def gids(self, device):
        """{index: (gid, type)} of port 1, without the empty ones; the table has 1024 entries."""
        kinds = {i: self.port(device, f"gid_attrs/types/{i}") for i in range(64)}
        return {i: (self.port(device, f"gids/{i}"), kind) for i, kind in kinds.items() if kind}

    def gid_index(self, device, address):
        """The index of the RoCE v2 GID that is an IPv4 address; it differs between hosts."""
        parts = [int(p) for p in address.split(".")]
        want = "0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x" % tuple(parts)
        for index, (gid, kind) in sorted(self.gids(device).items()):
            if gid == want and kind == "RoCE v2":
                return index
        raise LabError(f"{self.name}: {device} has no v2 GID for {address}: {self.gids(device)}")

    def port_state(self, device):
        """Such as ACTIVE or DOWN."""
        return self.port(device, "state").rpartition(" ")[2]

    def roce_counters(self):
        """Starts to count what leaves on UDP 4791, and TCP; read with roce_counted()."""
        self.run("nft", "-f", "-", text=f"""
table inet count {{
	chain out {{
		type filter hook output priority 0;
		udp dport {ROCE_PORT} counter
		meta l4proto tcp counter
	}}
}}
""")

    def roce_counted(self):
        """{"roce": (packets, bytes), "tcp": (packets, bytes)} since roce_counters()."""
        out = self.run("nft", "list", "table", "inet", "count").stdout
        rows = re.findall(r"counter packets (\d+) bytes (\d+)", out)
        pairs = [(int(p), int(b)) for p, b in rows]
        return {"roce": pairs[0], "tcp": pairs[1]}

    def block_roce(self):
        """What arrives for UDP 4791 is dropped, until unblock_roce()."""
        self.run("nft", "-f", "-", text=f"""
table inet block {{
	chain in {{
		type filter hook input priority 0;
		udp dport {ROCE_PORT} drop
	}}
}}
""")

    def unblock_roce(self):
        self.run("nft", "delete", "table", "inet", "block")

    def add_device(self, rail):
        """Makes the RoCE device of a rail anew, as inside/hosts does, after it was deleted."""
        for command in (["ip", "netns", "exec", self.name, "rdma", "link", "add", self.devices[rail],
                         "type", "rxe", "netdev", f"eth{rail}"],
                        ["rdma", "dev", "set", self.devices[rail], "netns", self.name]):
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=60, check=False)
            if done.returncode != 0:
                raise LabError(f"{self.name}: {' '.join(command)}: {done.stdout.strip()}")

    def disturb(self, rail, *netem):
        """What leaves on a rail meets netem, such as ("loss", "1%"); without words no more."""
        words = ["replace", "dev", f"eth{rail}", "root", "netem", *netem]
        if not netem:
            words = ["delete", "dev", f"eth{rail}", "root"]
        self.run("tc", "qdisc", *words)

    def run(self, *command, check=True, timeout=60, text=None):  # pylint: disable=arguments-differ
        """As Host.run, with input if there is text."""
        if text is None:
            return super().run(*command, check=check, timeout=timeout)
        done = subprocess.run(self.prefix() + list(command), input=text, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise LabError(f"{self.name}: {' '.join(command)}: {done.stdout.strip()}")
        return done


class RoceLab(Lab):
    """Lab(build, hosts=2, rails=1, gid_shift=False, mtu=4200)."""

    def __init__(self, build, hosts=2, mtu=4200, slow=1.0, rails=1, gid_shift=False):
        self.rails = rails
        self.gid_shift = gid_shift
        super().__init__(build, hosts, mtu=mtu, slow=slow)

    def _make_hosts(self, hosts, mtu):
        command = [HOSTS, "--hosts", str(hosts), "--rails", str(self.rails), "--mtu", str(mtu)]
        if self.gid_shift:
            command.append("--gid-shift")
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, check=False)
        if done.returncode != 0:
            raise LabError(f"cannot make the hosts: {done.stdout.strip()}")
        self.hosts = [RoceHost(self, i) for i in range(hosts)]
        for host in self.hosts:
            for device in host.devices:
                wait_for(lambda h=host, d=device: f"{d} of {h.name} is active",
                         lambda h=host, d=device: h.port_state(d) == "ACTIVE")

    def close(self):
        super().close()
        subprocess.run([HOSTS, "--remove"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       timeout=60, check=False)


class RoceContext(Context):
    """ctx.lab() makes such laboratories."""

    def lab(self, hosts=2, **options):
        return RoceLab(self.build, hosts, slow=self.slow, **options)
